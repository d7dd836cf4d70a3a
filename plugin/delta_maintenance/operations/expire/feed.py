"""Change data of expired rows, for tables with a change data feed.

A commit that writes files again would show each of their rows as deleted and inserted. With change
data files, which have the expired rows only, readers of changes see those as deleted, and nothing
else ("Add CDC File").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from delta_maintenance.protocol.actions.file_columns import CDC_TYPES
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.table.data.bins import RewriteSpec, RewrittenBin
from delta_maintenance.table.read.snapshot import Snapshot

_DELETE = "delete"


def has_feed(snapshot: Snapshot) -> bool:
    """Whether commits to the table need change data."""
    is_on: bool = snapshot.properties.enable_change_data_feed
    return is_on and supports(snapshot.protocol, "changeDataFeed")


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
            "partitionValues": list(each.bin.partition_values),
            "size": output.size,
            "dataChange": False,
        }
        for each in bins
        for output, path in zip(each.outputs, each.paths, strict=True)
    ]
    return pa.Table.from_pylist(actions, schema=pa.schema(list(CDC_TYPES.items())))
