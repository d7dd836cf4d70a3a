"""Per-file statistics: row counts, their type in checkpoints, and conversions.

Implements "Per-file Statistics" and the `stats_parsed` part of "Checkpoint Schema". The statistics
of a file are JSON text in `stats`, columns in `stats_parsed`, or both. A checkpoint that writes the
form it lacks converts the other one, and checks `ConvertedStatistics.lost` before it drops that.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from delta_maintenance.protocol.schema.types import (
    ColumnMappingMode,
    PrimitiveType,
    StructType,
    UnknownType,
    has_bounds,
    physical_schema,
    to_arrow_type,
)
from delta_maintenance.protocol.statistics.as_json import (
    num_records,
    parse_statistics,
    render_statistics,
)
from delta_maintenance.protocol.statistics.as_struct import (
    ConvertedStatistics,
    Path,
    align_statistics,
)

__all__ = [
    "ConvertedStatistics",
    "Path",
    "align_statistics",
    "num_records",
    "parse_statistics",
    "render_statistics",
    "statistics_arrow_type",
    "unconvertible_columns",
]


def statistics_arrow_type(
    schema: StructType,
    *,
    partition_columns: Iterable[str],
    mode: ColumnMappingMode,
    tight_bounds: bool,
) -> pa.StructType:
    """The type of `stats_parsed` for a table, by physical names, without partition columns.

    Bounds have a leaf for each numeric, boolean, date, timestamp and string column, null counts one
    for each column that is not a struct. Parts without leaves are omitted, because Parquet has no
    empty structs. Raises `CorruptTableError` if columns are mapped and one has no physical name.
    """
    columns = _data_columns(schema, partition_columns, mode)
    bounds = _bounds(columns)
    null_count = _null_count(columns)
    parts: list[tuple[str, pa.DataType | None]] = [
        ("numRecords", pa.int64()),
        ("minValues", bounds),
        ("maxValues", bounds),
        ("nullCount", null_count),
        ("tightBounds", pa.bool_() if tight_bounds else None),
    ]
    return pa.struct([(name, kind) for name, kind in parts if kind is not None])


def unconvertible_columns(
    schema: StructType, *, partition_columns: Iterable[str], mode: ColumnMappingMode
) -> tuple[Path, ...]:
    """Physical paths of the columns whose bounds cannot be converted between the two forms.

    These are variants and unknown types. A checkpoint of a table with such columns keeps the form
    of its input.
    """
    return tuple(_unconvertible(_data_columns(schema, partition_columns, mode), ()))


def _data_columns(
    schema: StructType, partition_columns: Iterable[str], mode: ColumnMappingMode
) -> StructType:
    partitioning = {name.lower() for name in partition_columns}
    data = tuple(column for column in schema.fields if column.name.lower() not in partitioning)
    return physical_schema(StructType(fields=data), mode)


def _bounds(struct: StructType) -> pa.StructType | None:
    leaves = []
    for column in struct.fields:
        if isinstance(column.type, StructType):
            kind = _bounds(column.type)
        else:
            kind = to_arrow_type(column.type) if has_bounds(column.type) else None
        if kind is not None:
            leaves.append(pa.field(column.name, kind))
    return pa.struct(leaves) if leaves else None


def _null_count(struct: StructType) -> pa.StructType | None:
    leaves = []
    for column in struct.fields:
        kind = _null_count(column.type) if isinstance(column.type, StructType) else pa.int64()
        if kind is not None:
            leaves.append(pa.field(column.name, kind))
    return pa.struct(leaves) if leaves else None


def _unconvertible(struct: StructType, path: Path) -> Iterable[Path]:
    for column in struct.fields:
        here = (*path, column.name)
        if isinstance(column.type, StructType):
            yield from _unconvertible(column.type, here)
        elif isinstance(column.type, UnknownType) or column.type == PrimitiveType(name="variant"):
            yield here
