"""The files of a version for users: one row per file, with the documented fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    REMOVE_TYPES,
    ROW_COUNT,
    deletion_vector_ids,
)
from delta_maintenance.protocol.statistics.row_counts import stated_row_counts
from delta_maintenance.protocol.statistics.stats import num_records


def file_view(batch: pa.Table) -> pa.Table:
    """Returns the rows of `Snapshot.live_files` for a batch of adds."""
    return pa.table(
        {
            "path": batch["path"],
            "dv": deletion_vector_ids(batch),
            "size": column_of(batch, "size", ADD_TYPES),
            "partition_values": column_of(batch, "partitionValues", ADD_TYPES),
            "num_records": record_counts(batch, stated=stated_row_counts),
            "base_row_id": column_of(batch, "baseRowId", ADD_TYPES),
            "default_row_commit_version": column_of(batch, "defaultRowCommitVersion", ADD_TYPES),
        }
    )


def view_keys(view: pa.Table) -> pa.ChunkedArray:
    """Returns the logical file of each row as one string."""
    path, vector = view["path"], view["dv"]
    with_vector = pc.binary_join_element_wise(pc.fill_null(vector, ""), path, "\0")
    return pc.if_else(pc.is_valid(vector), with_vector, path)


def tombstone_view(batch: pa.Table) -> pa.Table:
    """Returns the rows of `Snapshot.tombstones` for a batch of removes."""
    vouched = pc.fill_null(column_of(batch, "extendedFileMetadata", REMOVE_TYPES), False)
    view = file_view(batch)
    for index, name in ((2, "size"), (3, "partition_values")):
        column = view[name]
        view = view.set_column(index, name, _where(vouched, column))
    return view.append_column(
        "deletion_timestamp", column_of(batch, "deletionTimestamp", REMOVE_TYPES)
    )


def _where(condition: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pc.all(condition).as_py() in (True, None):
        return column
    rows = pc.if_else(condition, pa.array(np.arange(len(column))), pa.scalar(None, pa.int64()))
    return column.take(rows)


def record_counts(
    batch: pa.Table,
    *,
    stated: Callable[[pa.ChunkedArray], pa.Array | pa.ChunkedArray] = num_records,
) -> pa.ChunkedArray:
    """Returns the physical rows of each add of a scan, from either form of its statistics, or null.

    `stated` reads them from JSON: `num_records` for decisions, `stated_row_counts` for totals. A
    scan with the field `ROW_COUNT` has already done the latter.
    """
    if ROW_COUNT in batch.column_names:
        told = batch[ROW_COUNT]
    else:
        told = stated(column_of(batch, "stats", ADD_TYPES))
        told = pa.chunked_array([told]) if isinstance(told, pa.Array) else told
    if "stats_parsed" not in batch.column_names or not told.null_count:
        return told
    parsed = []
    for chunk in batch["stats_parsed"].chunks:
        names = [field.name for field in chunk.type]
        parsed.append(
            pc.struct_field(chunk, "numRecords").cast(pa.int64())
            if "numRecords" in names
            else pa.nulls(len(chunk), pa.int64())
        )
    return pc.coalesce(told, pa.chunked_array(parsed, pa.int64()))


def column_of(batch: pa.Table, name: str, types: Mapping[str, pa.DataType]) -> pa.ChunkedArray:
    """Returns a column of a batch; nulls of its type if the batch does not have it."""
    if name in batch.column_names:
        return batch[name]
    return pa.chunked_array([pa.nulls(batch.num_rows, types[name])])
