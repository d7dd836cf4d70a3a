"""Footers without the partition columns that some writers add to data files.

Delta Spark adds them by default (`delta.writePartitionColumnsToParquet`). Readers take their values
from the log, and new files do not have them. Implements "File Metadata" of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import compress

from delta_maintenance.parquet import footers as fields
from delta_maintenance.parquet.footers import Chunk
from delta_maintenance.parquet.thrift import (
    I32,
    I64,
    LIST,
    STRUCT,
    ListValue,
    MalformedThriftError,
    Struct,
    Value,
)

NUM_CHILDREN = 5
_NAME, _SORTING_COLUMNS = 4, 4
_SCHEMAS = (b"ARROW:schema", b"org.apache.spark.sql.parquet.row.metadata")
"""The keys of copies of the schema."""


def without_columns(footer: Struct, names: Container[Value]) -> Struct | None:
    """Returns a footer without the top-level columns with these names; None if it has none.

    Only columns that are not nested are removed.
    """
    root, *elements = footer.structs(fields.SCHEMA)
    kept_elements: list[bool] = []
    nested = 0
    for element in elements:
        children = element.number(NUM_CHILDREN) or 0
        kept_elements.append(bool(nested or children) or element.get(_NAME) not in names)
        nested = max(nested - 1, 0) + children
    if all(kept_elements):
        return None
    leaves = [
        is_kept
        for element, is_kept in zip(elements, kept_elements, strict=True)
        if not element.number(NUM_CHILDREN)
    ]
    root = root.copy()
    root.put(NUM_CHILDREN, I32, (root.number(NUM_CHILDREN) or 0) - kept_elements.count(False))
    shorter_footer = footer.copy()
    shorter_footer.put(
        fields.SCHEMA, LIST, ListValue(STRUCT, [root, *compress(elements, kept_elements)])
    )
    groups = [_without(group, leaves) for group in footer.structs(fields.ROW_GROUPS)]
    shorter_footer.put(fields.ROW_GROUPS, LIST, ListValue(STRUCT, list(groups)))
    orders = footer.get(fields.COLUMN_ORDERS)
    if isinstance(orders, ListValue):
        orders_left = [*compress(orders.values, leaves)]
        shorter_footer.put(fields.COLUMN_ORDERS, LIST, ListValue(orders.element, orders_left))
    pairs = [
        pair for pair in footer.structs(fields.KEY_VALUES) if pair.get(fields.KEY) not in _SCHEMAS
    ]
    shorter_footer.put(fields.KEY_VALUES, LIST, ListValue(STRUCT, list(pairs)))
    return shorter_footer


def _without(group: Struct, leaves: Sequence[bool]) -> Struct:
    chunks = group.structs(fields.COLUMNS)
    if len(chunks) != len(leaves):
        raise MalformedThriftError("a row group has other columns than the schema")
    chunks_left = [*compress(chunks, leaves)]
    group = group.copy()
    group.drop(_SORTING_COLUMNS)
    group.put(fields.COLUMNS, LIST, ListValue(STRUCT, list(chunks_left)))
    chunks_kept = [Chunk.of(chunk) for chunk in chunks_left]
    decoded = sum(
        chunk_kept.metadata.number(fields.TOTAL_DECODED) or 0 for chunk_kept in chunks_kept
    )
    group.put(fields.GROUP_BYTES, I64, decoded)
    if group.get(fields.GROUP_COMPRESSED) is not None:
        group.put(fields.GROUP_COMPRESSED, I64, sum(chunk_kept.size for chunk_kept in chunks_kept))
    return group
