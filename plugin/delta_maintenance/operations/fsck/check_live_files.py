"""Checks whether the actions of live files are plausible.

Opens no file, except for the footers of files whose row IDs look wrong and whose number of rows is
not in the log. Implements requirements of "Per-file Statistics", "Deletion Vectors", "Row Tracking"
and "Action Reconciliation", in columns throughout.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, REMOVE_TYPES
from delta_maintenance.protocol.actions.paths import PathAudit
from delta_maintenance.protocol.columns.arrays import booleans, integers
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.row_tracking import domain as row_tracking
from delta_maintenance.protocol.row_tracking.domain import RowTrackingState, row_tracking_state
from delta_maintenance.protocol.row_tracking.used_ids import Numbers, overlapping
from delta_maintenance.table.data.footers import RowCounter
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.files.view import record_counts
from delta_maintenance.table.read.snapshot import Snapshot

_KEPT = ("path", "deletionVector", "size", "baseRowId", "defaultRowCommitVersion")
_FIELDS = {
    "add": (*_KEPT, "stats", "stats_parsed"),
    "remove": ("path", "deletionVector", "deletionTimestamp"),
}


@dataclass(slots=True)
class LiveFiles:
    """The live files and the tombstones of a snapshot, without their statistics."""

    adds: pa.Table
    """`path`, `deletionVector`, `size`, `baseRowId`, `defaultRowCommitVersion`, `num_records`."""
    tombstones: pa.Table
    """`path`, `deletionVector`, `deletionTimestamp`."""
    unreadable_statistics: pa.ChunkedArray
    """The paths of files whose statistics are not a JSON object."""


def read_live_files(snapshot: Snapshot) -> LiveFiles:
    """Reads the files of a snapshot; damaged checkpoints are skipped."""
    while True:
        collected = _Collected()
        try:
            for batch in snapshot.scan(fields=_FIELDS):
                collected.take(batch.adds, batch.tombstones)
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)
            continue
        return LiveFiles(
            pa.concat_tables(collected.adds, promote_options="default"),
            pa.concat_tables(collected.tombstones, promote_options="default"),
            pa.chunked_array(collected.unreadable, pa.string()),
        )


def check_live_files(
    snapshot: Snapshot, files: LiveFiles, findings: Findings, *, count: RowCounter
) -> None:
    """Adds the problems of a snapshot's files. `count` reads numbers of rows from footers."""
    findings.add_files(
        "invalid-statistics",
        "its statistics are not a JSON object",
        paths=files.unreadable_statistics,
        version=snapshot.version,
    )
    audit = PathAudit(snapshot.table)
    # Without vectors: paths that are live with two vectors are found in the history.
    audit.add(files.adds.select(["path"]), files.tombstones.select(["path"]))
    if (problem := audit.problem()) is not None:
        findings.add("two-spellings", problem, version=snapshot.version)
    _check_vectors(snapshot, files.adds, findings)
    _check_row_ids(snapshot, files.adds, findings, count)


def _check_vectors(snapshot: Snapshot, adds: pa.Table, findings: Findings) -> None:
    with_vector = adds.filter(pc.is_valid(adds["deletionVector"]))
    if not with_vector.num_rows:
        return
    version, paths = snapshot.version, with_vector["path"]
    if not supports(snapshot.protocol, "deletionVectors"):
        problem = "the file has a deletion vector, but the table does not support deletionVectors"
        findings.add_files("vector-without-feature", problem, paths=paths, version=version)
    counts = with_vector["num_records"]
    problem = "the file has a deletion vector, but its statistics do not state its number of rows"
    uncounted = paths.filter(pc.is_null(counts))
    findings.add_files("vector-without-count", problem, paths=uncounted, version=version)
    marked = pc.struct_field(with_vector["deletionVector"], "cardinality")
    findings.add_files(
        "damaged-deletion-vector",
        "its deletion vector marks more rows than the file has",
        paths=paths.filter(pc.fill_null(pc.greater(marked, counts), False)),
        version=version,
    )


def _check_row_ids(
    snapshot: Snapshot, adds: pa.Table, findings: Findings, count: RowCounter
) -> None:
    version = snapshot.version
    state = row_tracking_state(snapshot.protocol, snapshot.metadata.configuration)
    if state is RowTrackingState.UNSUPPORTED:
        return
    late = pc.fill_null(pc.greater(adds["defaultRowCommitVersion"], version), False)
    problem = "its default row commit version is greater than the version of the table"
    paths = adds["path"].filter(late)
    findings.add_files("future-row-commit-version", problem, paths=paths, version=version)
    given = pc.is_valid(adds["baseRowId"])
    if state is RowTrackingState.ENABLED:
        paths = adds["path"].filter(pc.invert(given))
        problem = "row tracking is enabled, but the file has no row IDs"
        findings.add_files("missing-row-id", problem, paths=paths, version=version)
    domain = snapshot.state.domains.get(row_tracking.DOMAIN)
    mark, unknown_mark = row_tracking.NO_ROW_ID, None
    try:
        mark = row_tracking.high_water_mark(None if domain is None else domain.configuration)
    except CorruptTableError as error:
        unknown_mark = error.problem
    numbered = _counted(adds.filter(given), mark, count)
    overlaps, _ = _overlaps(numbered)
    findings.add_files(
        "overlapping-row-ids",
        "some of its row IDs belong to rows of another file too",
        paths=numbered["path"].take(integers(overlaps)),
        version=version,
    )
    if unknown_mark is not None:
        findings.add("row-id-mark-too-low", unknown_mark, version=version)
        return
    occupied = numbered.filter(pc.not_equal(pc.fill_null(numbered["num_records"], 1), 0))
    highest = row_tracking.highest_assigned_row_id(occupied["baseRowId"], occupied["num_records"])
    if highest > mark and state is not RowTrackingState.SUSPENDED:
        problem = f"the high-water mark is {mark}, but the row ID {highest} is in use"
        findings.add("row-id-mark-too-low", problem, version=version)


def _counted(numbered: pa.Table, mark: int, count: RowCounter) -> pa.Table:
    """Adds the numbers of rows of files that look wrong only if they are not empty.

    A file without a number of rows in the log counts as one row. If it then overlaps with another
    file or exceeds the high-water mark, its footer decides.
    """
    unknown = pc.is_null(numbered["num_records"]).to_numpy()
    if not unknown.any():
        return numbered
    suspect = numbered["baseRowId"].to_numpy() > mark
    for rows in _overlaps(numbered):
        suspect[rows] = True
    asked = np.flatnonzero(suspect & unknown)
    counts = count(numbered["path"].take(integers(asked)).combine_chunks()).counts
    # Files that cannot be read are reported elsewhere.
    filled = pc.replace_with_mask(
        numbered["num_records"].combine_chunks(),
        booleans(suspect & unknown),
        pc.fill_null(counts, 0),
    )
    at = numbered.column_names.index("num_records")
    return numbered.set_column(at, "num_records", filled)


def _overlaps(numbered: pa.Table) -> tuple[Numbers, Numbers]:
    # A file with an unknown number of rows has at least one.
    rows = pc.fill_null(numbered["num_records"], 1).to_numpy()
    return overlapping(numbered["baseRowId"].to_numpy(), rows)


@dataclass(slots=True)
class _Collected:
    adds: list[pa.Table] = field(
        default_factory=lambda: [
            pa.schema([(name, ADD_TYPES[name]) for name in _KEPT])
            .append(pa.field("num_records", pa.int64()))
            .empty_table()
        ]
    )
    tombstones: list[pa.Table] = field(
        default_factory=lambda: [
            pa.schema([(name, REMOVE_TYPES[name]) for name in _FIELDS["remove"]]).empty_table()
        ]
    )
    unreadable: list[pa.Array] = field(default_factory=list)

    def take(self, adds: pa.Table, tombstones: pa.Table) -> None:
        """Keeps the columns of a batch that are needed later; most of its size is statistics."""
        counts = record_counts(adds)
        self.unreadable.extend(_without_statistics(adds, counts).chunks)
        self.adds.append(
            adds.select([name for name in _KEPT if name in adds.column_names]).append_column(
                "num_records", counts
            )
        )
        self.tombstones.append(tombstones)


def _without_statistics(adds: pa.Table, counts: pa.ChunkedArray) -> pa.ChunkedArray:
    if "stats" not in adds.column_names:
        return adds["path"].slice(0, 0)
    # Statistics with a row count are valid objects; the few others are checked individually.
    suspect = adds.filter(pc.and_(pc.is_valid(adds["stats"]), pc.is_null(counts)))
    texts = pc.unique(suspect["stats"])
    broken = texts.filter(booleans(np.array([not _is_object(t) for t in texts.to_pylist()], bool)))
    return suspect["path"].filter(pc.is_in(suspect["stats"], value_set=broken))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
