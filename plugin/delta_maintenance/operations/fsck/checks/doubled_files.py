"""Finds live files whose removal failed, so that their rows are read twice or after their deletion.

Implements the rule of "Action Reconciliation" that only a remove of the same logical file ends an
add: a remove without the deletion vector of the file, or with another spelling of its path, does
not.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.fsck.findings import DOUBTFUL, Findings
from delta_maintenance.operations.fsck.inputs import LiveFiles, LogHistory
from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns import booleans, integers


def check_doubled_files(
    history: LogHistory, live: LiveFiles, findings: Findings, *, root: str
) -> pa.Table:
    """Adds a finding for each such file, with the commit that should have removed it.

    Returns the `key` and the `path` of each, whether the commit `changes_data`, and whether it
    `is_doubtful` which rows the commit meant.
    """
    doubled = history.files.doubled_files(root=root)
    at = pc.index_in(doubled.keys, value_set=logical_file_keys(live.adds))
    adds = live.adds.take(at)
    deleted = pc.struct_field(adds["deletionVector"], "cardinality")
    rows = pc.subtract(adds["num_records"], pc.fill_null(deleted, 0))
    counts = pc.fill_null(pc.max_element_wise(rows, 0, skip_nulls=False).cast(pa.string()), "its")
    under = pc.binary_join_element_wise("as", doubled.removed_paths, " ")
    vector = pc.if_else(
        pc.match_substring(doubled.removed_keys, "\0"),
        "with another deletion vector",
        "without its deletion vector",
    )
    is_same = pc.equal(adds["path"], doubled.removed_paths)
    problems = pc.binary_join_element_wise(
        "the commit of version",
        integers(doubled.versions).cast(pa.string()),
        "removed it",
        pc.if_else(is_same, vector, under),
        "and moved or deleted its rows, so",
        counts,
        "rows are read that should not be",
        " ",
    )
    for doubtful in (False, True):
        chosen = booleans(doubled.is_doubtful == doubtful)
        findings.add_files(
            "doubled-file",
            problems.filter(chosen),
            paths=adds["path"].filter(chosen),
            version=integers(doubled.versions).filter(chosen),
            remedy=DOUBTFUL if doubtful else None,
        )
    return pa.table(
        {
            "key": doubled.keys,
            "path": adds["path"],
            "changes_data": booleans(doubled.changes_data),
            "is_doubtful": booleans(doubled.is_doubtful),
        }
    )
