"""Change data of expired rows, for tables with a change data feed.

A commit that writes files again would show each of their rows as deleted and inserted. With change
data files, which have the expired rows only, readers of changes see those as deleted, and nothing
else ("Add CDC File").

A commit that marks rows by deletion vectors needs none, except where Delta Spark could not read it:
its reader of changes holds the difference of two vectors as a text, whose length Java limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from delta_maintenance.protocol.actions.file_columns import CDC_TYPES
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.table.data.bins import RewriteSpec, RewrittenBin
from delta_maintenance.table.read.snapshot import Snapshot

_DELETE = "delete"
_LONGEST_TEXT = 65_535
"""Bytes that Java's `DataOutputStream.writeUTF` accepts."""


def has_feed(snapshot: Snapshot) -> bool:
    """Whether commits to the table need change data."""
    is_on: bool = snapshot.properties.enable_change_data_feed
    return is_on and supports(snapshot.protocol, "changeDataFeed")


def is_too_long_for_spark(rows: BitMap64) -> bool:
    """Whether Delta Spark cannot read the change of a deletion vector into one with these rows in
    addition. Sizes are those of bitmaps without run-length encoding, which are the largest.
    """
    containers, counts = np.unique(
        np.asarray(rows.to_array(), np.uint64) >> np.uint64(16), return_counts=True
    )
    bitmaps = len(np.unique(containers >> np.uint64(16)))
    size = 12 + 12 * bitmaps + int((8 + np.minimum(2 * counts, 8192)).sum())
    # The text has five characters for four bytes.
    return -(-size // 4) * 5 > _LONGEST_TEXT


def changes_of(spec: RewriteSpec) -> RewriteSpec:
    """Returns how to write change data files with deleted rows, beside files of `spec`."""
    files = replace(
        spec.files,
        layout=spec.files.layout.of_changes(_DELETE),
        statistics=StatisticsColumns(leaves=(), tight_bounds=False),
    )
    naming = replace(spec.naming, of_changes=True)
    return replace(spec, files=files, naming=naming, copied_group_bytes=None)


def change_actions(bins: Sequence[RewrittenBin]) -> pa.Table:
    """Returns the `cdc` actions of change data files."""
    actions = [
        {
            "path": path,
            "partitionValues": list(bin_.bin.partition_values),
            "size": output.size,
            "dataChange": False,
        }
        for bin_ in bins
        for output, path in zip(bin_.outputs, bin_.paths, strict=True)
    ]
    return pa.Table.from_pylist(actions, schema=pa.schema(list(CDC_TYPES.items())))
