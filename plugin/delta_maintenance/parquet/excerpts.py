"""Parquet files in memory that contain some columns of one row group of another file.

For decoders that take whole files. The pages are those of the source; only positions change.
"""

from __future__ import annotations

from collections.abc import Sequence

from delta_maintenance.parquet import footers as fields
from delta_maintenance.parquet.footers import MAGIC, Chunk, end_of_file
from delta_maintenance.parquet.thrift import (
    I32,
    I64,
    LIST,
    STRUCT,
    ListValue,
    MalformedThriftError,
    Struct,
    struct_bytes,
)

_NAME, _CHILDREN = 4, 5
"""The fields of a schema element."""
_KEPT = (fields.NUM_VALUES, fields.TOTAL_DECODED, fields.TOTAL_COMPRESSED, 1, 2, 3, 4)
"""The metadata of a column that decoding needs: its sizes, type, encodings, path and codec."""


def excerpt(
    footer: Struct, group: int, leaves: Sequence[int], chunks: Sequence[memoryview]
) -> bytes:
    """Returns a Parquet file with these leaves of a row group, which are top-level columns.

    `chunks` are the bytes of the leaves. `MalformedThriftError` if the footer is incomplete.
    """
    tree = footer.structs(fields.ROW_GROUPS)[group]
    columns = tree.structs(fields.COLUMNS)
    parts: list[bytes | memoryview] = [MAGIC]
    at = len(MAGIC)
    moved = []
    for leaf, data in zip(leaves, chunks, strict=True):
        moved.append(_moved(columns[leaf], at))
        parts.append(data)
        at += len(data)
    rows = tree.number(fields.GROUP_ROWS) or 0
    new_group = Struct()
    new_group.put(fields.COLUMNS, LIST, ListValue(STRUCT, list(moved)))
    new_group.put(fields.GROUP_BYTES, I64, tree.number(fields.GROUP_BYTES) or 0)
    new_group.put(fields.GROUP_ROWS, I64, rows)
    found = Struct()
    found.put(fields.VERSION, I32, footer.number(fields.VERSION) or 1)
    found.put(fields.SCHEMA, LIST, ListValue(STRUCT, list(_schema(footer, leaves))))
    found.put(fields.NUM_ROWS, I64, rows)
    found.put(fields.ROW_GROUPS, LIST, ListValue(STRUCT, [new_group]))
    return b"".join([*parts, end_of_file(struct_bytes(found))])


def _moved(tree: Struct, at: int) -> Struct:
    """Returns a column chunk whose pages begin at a position."""
    chunk = Chunk.of(tree)
    metadata = Struct()
    for number in _KEPT:
        if number in chunk.metadata.fields:
            metadata.put(number, *chunk.metadata.fields[number])
    for number in (fields.DATA_PAGE, fields.DICTIONARY_PAGE):
        position = chunk.metadata.number(number)
        if position:
            metadata.put(number, I64, position - chunk.start + at)
    moved = Struct()
    moved.put(fields.CHUNK_OFFSET, I64, 0)
    moved.put(fields.CHUNK_METADATA, STRUCT, metadata)
    return moved


def _schema(footer: Struct, leaves: Sequence[int]) -> list[Struct]:
    """Returns the root and the elements of these leaves. Each element without children is a
    leaf.
    """
    elements = footer.structs(fields.SCHEMA)
    flat = [each for each in elements if not each.number(_CHILDREN)]
    if not elements or max(leaves) >= len(flat):
        raise MalformedThriftError("a footer has fewer columns in its schema")
    root = elements[0].copy()
    root.put(_CHILDREN, I32, len(leaves))
    return [root, *(flat[leaf] for leaf in leaves)]
