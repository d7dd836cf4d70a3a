"""Bounds in footers of columns with NaN.

Arrow and other writers leave NaN out of a minimum and a maximum. Readers for which NaN is greater
than every number, such as Spark, then skip row groups and pages with matching rows. New files
follow parquet-mr: a column chunk with NaN has no bounds, neither in the footer nor in a column
index. Implements the order of floating-point numbers of "ColumnOrder" of the Parquet format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.parquet.footers import (
    CHUNK_METADATA,
    COLUMN_INDEX,
    COLUMN_INDEX_SIZE,
    COLUMNS,
    MAGIC,
    ROW_GROUPS,
    STATISTICS,
    Chunk,
    end_of_file,
    footer_size,
)
from delta_maintenance.parquet.thrift import LIST, STRUCT, ListValue, Struct, with_edited_structs

_NAN_IS_GREATEST = re.compile(r"parquet-mr version 1\.1[0-7]\.(?!.*trino)", re.I)
"""Writers that omit the bounds if any value is NaN: parquet-mr 1.10 to 1.17. Others ignore NaN, and
later versions may.
"""
_BOUNDS = (1, 2, 5, 6, 7, 8)
"""The fields of `Statistics` for the bounds, in the old and the new form, and their exactness."""


def leaves_with_nan(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> frozenset[int]:
    """Returns the leaves with any NaN, by their number in `schema`, which has at least the columns
    of the rows.
    """
    nan_leaves: set[int] = set()
    leaf = 0
    for field in schema:
        count = sum(1 for _ in _leaf_types(field.type))
        if rows.schema.get_field_index(field.name) >= 0 and _has_floats(field.type):
            column = rows.column(field.name)
            for chunk in getattr(column, "chunks", [column]):
                nan_leaves.update(
                    leaf + at for at, has_nan in enumerate(_has_nan(chunk)) if has_nan
                )
        leaf += count
    return frozenset(nan_leaves)


def doubtful_columns(chunks: Sequence[Struct], schema: pa.Schema, created_by: str) -> list[str]:
    """Returns the top-level columns of a row group with bounds that may leave out NaN.

    `chunks` are those of the leaves of `schema`, in its order; the last ones may be missing.
    """
    if omits_bounds_of_nan(created_by):
        return []
    leaves = [(field.name, kind) for field in schema for kind in _leaf_types(field.type)]
    names = [
        name
        for (name, kind), chunk in zip(leaves, chunks, strict=False)
        if pa.types.is_floating(kind) and _has_bounds(chunk)
    ]
    return list(dict.fromkeys(names))


def omits_bounds_of_nan(created_by: str) -> bool:
    """Whether a writer omits the bounds of a column chunk if any value is NaN."""
    return _NAN_IS_GREATEST.match(created_by) is not None


def without_bounds(chunk: Struct) -> Struct:
    """Returns a column chunk without its bounds and its column index."""
    tree, metadata = chunk.copy(), Chunk.of(chunk).metadata.copy()
    statistics = metadata.get(STATISTICS)
    if isinstance(statistics, Struct):
        statistics = statistics.copy()
        statistics.drop(*_BOUNDS)
        metadata.put(STATISTICS, STRUCT, statistics)
    tree.put(CHUNK_METADATA, STRUCT, metadata)
    tree.drop(COLUMN_INDEX, COLUMN_INDEX_SIZE)
    return tree


def without_nan_bounds(end: bytes, leaves: Mapping[int, frozenset[int]]) -> bytes:
    """Returns the end of a file, beginning before its footer, without the bounds of these leaves.

    `leaves` are those with NaN, by row group. Their column indexes stay in the file, but the new
    footer does not refer to them. The metadata of one row group is held as objects at a time.
    """

    def edited(number: int, group: Struct) -> Struct:
        chunks = group.structs(COLUMNS)
        for leaf in leaves.get(number, ()):
            chunks[leaf] = without_bounds(chunks[leaf])
        group.put(COLUMNS, LIST, ListValue(STRUCT, list(chunks)))
        return group

    size = footer_size(end)
    footer = with_edited_structs(end[-size : -len(MAGIC) - 4], ROW_GROUPS, edited)
    return end[:-size] + end_of_file(footer)


def _has_bounds(chunk: Struct) -> bool:
    statistics = Chunk.of(chunk).metadata.get(STATISTICS)
    if isinstance(statistics, Struct) and not statistics.fields.keys().isdisjoint(_BOUNDS):
        return True
    return chunk.get(COLUMN_INDEX) is not None


def _has_floats(kind: pa.DataType) -> bool:
    return any(map(pa.types.is_floating, _leaf_types(kind)))


def _leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    if not pa.types.is_nested(kind):
        return iter((kind,))
    return chain.from_iterable(_leaf_types(kind.field(at).type) for at in range(kind.num_fields))


def _has_nan(values: pa.Array) -> list[bool]:
    """Returns for each leaf of an array whether any value is NaN."""
    kind = values.type
    if pa.types.is_struct(kind):
        return [has_nan for at in range(kind.num_fields) for has_nan in _has_nan(values.field(at))]
    if pa.types.is_nested(kind):
        begin, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        pieces = (values.keys, values.items) if pa.types.is_map(kind) else (values.values,)
        return [has_nan for piece in pieces for has_nan in _has_nan(piece[begin:end])]
    return [bool(pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py())]
