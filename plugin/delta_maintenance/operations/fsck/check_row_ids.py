"""Compares the row IDs of all live rows, including those that data files store.

Implements "Row Tracking": within a version, no row ID belongs to two rows. Rewrites and updates
store row IDs in data files, so that ranges of the log do not show whether they are unique. Row IDs
of deleted rows may occur again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from delta_maintenance.errors import DeltaMaintenanceError, StorageError
from delta_maintenance.operations.fsck.check_presence import as_uris
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.row_tracking.domain import RowTrackingState, row_tracking_state
from delta_maintenance.protocol.row_tracking.used_ids import IdRanges, UsedRowIds
from delta_maintenance.protocol.schema.types import StructType
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.data_file_reader import DataFileReader, SourceFile
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot

MOST_RANGES = 1 << 25
"""The number of ranges at which files are no longer compared: 512 MiB."""
_TOGETHER = 8
"""The number of files that are read at a time."""


def row_tracking_layout(snapshot: Snapshot) -> DataFileLayout | None:
    """Returns the layout for reading row IDs from data files; None if the table has none."""
    properties = snapshot.properties
    names = (
        properties.materialized_row_id_column,
        properties.materialized_row_commit_version_column,
    )
    state = row_tracking_state(snapshot.protocol, snapshot.metadata.configuration)
    if state is not RowTrackingState.ENABLED or not all(names):
        return None
    nothing = StructType(fields=())
    return DataFileLayout(
        columns=nothing,
        partition_columns=nothing,
        # The hidden columns are found by their names in every mode.
        mode="none",
        row_id_column=names[0],
        row_version_column=names[1],
    )


def check_row_ids(
    store: Store,
    present: pa.Table,
    layout: DataFileLayout,
    findings: Findings,
    *,
    version: int,
    progress: Progress | None = None,
) -> int:
    """Finds files with a row ID that another live row has too.

    `present` is as in `Presence`. Returns the number of files whose row IDs were not compared,
    because they cannot be read, which other checks report, or because there are too many ranges.
    """
    used = UsedRowIds()
    compared, total = 0, int(present.num_rows)
    with ThreadPoolExecutor(_TOGETHER) as pool:
        for first in range(0, total, _TOGETHER):
            if len(used) >= MOST_RANGES:
                break
            rows = present.slice(first, _TOGETHER)
            rows = rows.set_column(
                rows.schema.get_field_index("place"),
                "place",
                as_uris(rows["place"].combine_chunks()),
            ).to_pylist()
            for row, found in zip(
                rows, pool.map(partial(_ranges, store, layout), rows), strict=True
            ):
                if found is None:
                    continue
                compared += 1
                repeated = used.add(found)
                if repeated is not None:
                    problem = f"another row also has the row ID {repeated}"
                    findings.add("repeated-row-id", problem, version=version, path=row["path"])
            if progress is not None:
                progress("row IDs", min(first + _TOGETHER, total), total)
    return total - compared


def _ranges(store: Store, layout: DataFileLayout, row: dict[str, Any]) -> IdRanges | None:
    """Returns the row IDs of the live rows of a file; None if they cannot be read."""
    vector = row["deletionVector"]
    source = SourceFile(
        path=row["place"],
        partition_values=(),
        size=row["size"] or 0,
        deletion_vector=None if vector is None else DeletionVectorDescriptor.from_json(vector),
        base_row_id=row["baseRowId"],
        default_row_commit_version=row["defaultRowCommitVersion"],
    )
    parts = []
    try:
        for rows in DataFileReader(store, layout).read(source):
            parts.append(IdRanges.of(rows.live().column(0).to_numpy()))
    except StorageError:
        raise
    except DeltaMaintenanceError:
        return None
    return IdRanges.joined(parts)
