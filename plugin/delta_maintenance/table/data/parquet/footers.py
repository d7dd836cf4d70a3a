"""Parquet footers: reading them, checking them before pyarrow does, and their trees of values.

pyarrow aborts the process when it is asked for the metadata of an encrypted column, of a column
with an unknown codec, or of one whose type or statistics do not fit the schema, because a C++
exception leaves a function declared `noexcept`. A few bytes in a footer are enough to cause that,
so footers are checked first.

A footer is changed and written as a tree, so that fields that this release does not use are kept.

Arrow and other writers leave NaN out of a minimum and a maximum. Readers for which NaN is greater
than every number, such as Spark, then skip row groups and pages with matching rows. New files
follow parquet-mr: a column chunk with NaN has no bounds, neither in the footer nor in a column
index. Implements "File Metadata", "Encrypted Column Metadata", the statistics and the order of
floating-point numbers of "ColumnOrder" of the Parquet format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.table.data.parquet.thrift import (
    BINARY,
    I16,
    I64,
    LIST,
    STOP,
    STRUCT,
    ListValue,
    MalformedThriftError,
    Struct,
    field_head,
    list_head,
    skip,
    skip_elements,
    varint,
    with_edited_structs,
    zigzag,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MAGIC = b"PAR1"
END_BYTES = 8
"""The bytes after a footer: its length and a magic number."""
_TYPES = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)
"""The physical types by their numbers in the format."""
_CODECS = 8
"""The number of codecs of the format, from 0 (UNCOMPRESSED) to 7 (LZ4_RAW)."""
_WIDTHS = {
    "BOOLEAN": 1,
    "INT32": 4,
    "INT64": 8,
    "INT96": 0,
    "FLOAT": 4,
    "DOUBLE": 8,
    "BYTE_ARRAY": 0,
}
"""The size of a bound in bytes; 0 for types whose bounds may have any length or are not decoded."""

# Fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and KeyValue.
VERSION, SCHEMA, NUM_ROWS, ROW_GROUPS, KEY_VALUES, CREATED_BY, COLUMN_ORDERS = range(1, 8)
COLUMNS, GROUP_BYTES, GROUP_ROWS, GROUP_OFFSET, GROUP_COMPRESSED, ORDINAL = 1, 2, 3, 5, 6, 7
FILE_PATH, CHUNK_OFFSET, CHUNK_METADATA = 1, 2, 3
OFFSET_INDEX, OFFSET_INDEX_SIZE, COLUMN_INDEX, COLUMN_INDEX_SIZE = 4, 5, 6, 7
NUM_VALUES, TOTAL_DECODED, TOTAL_COMPRESSED = 5, 6, 7
DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, STATISTICS = 9, 10, 11, 12
BLOOM_FILTER, BLOOM_FILTER_SIZE = 14, 15
KEY, KEY_VALUE = 1, 2

_Readers: TypeAlias = "Mapping[int, Callable[[int, int], int | None]]"
"""Maps the number of a field to a function of its type and position.

The function returns the position after the value, or None if the value is to be skipped.
"""


def footer_size(tail: bytes) -> int:
    """Returns the size of the footer and the bytes after it, given the last bytes of a file."""
    return int.from_bytes(tail[-END_BYTES:-4], "little") + END_BYTES


def require_readable_columns(footer: bytes, schema: pq.ParquetSchema) -> None:
    """Raises `pa.ArrowInvalid` if a footer, which has this schema, is invalid, or if pyarrow cannot
    be asked about a column.
    """
    try:
        _FooterCheck(footer, schema).run()
    except IndexError:
        raise pa.ArrowInvalid("the footer is truncated") from None
    except MalformedThriftError as error:
        raise pa.ArrowInvalid(f"the footer is invalid: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A column chunk as it is stored."""

    tree: Struct
    metadata: Struct
    start: int
    size: int

    @classmethod
    def of(cls, tree: Struct) -> Chunk:
        """Parses a column chunk. `MalformedThriftError` if its metadata is incomplete."""
        metadata = tree.get(CHUNK_METADATA)
        if not isinstance(metadata, Struct):
            raise MalformedThriftError("a column chunk has no metadata")
        data, size = metadata.number(DATA_PAGE), metadata.number(TOTAL_COMPRESSED)
        if data is None or size is None:
            raise MalformedThriftError("a column chunk has no position")
        # Some writers store 0 if there is no dictionary.
        return cls(
            tree=tree, metadata=metadata, start=metadata.number(DICTIONARY_PAGE) or data, size=size
        )

    def range_of(self, offset: int, size: int, tree: Struct) -> tuple[int, int] | None:
        """Returns the position and the size from two fields of a struct; None if one is absent."""
        at, length = tree.number(offset), tree.number(size)
        return None if at is None or length is None else (at, length)


def end_of_file(footer: bytes) -> bytes:
    """Returns what follows the last page or index of a file: the footer, its length and a magic
    number.
    """
    return footer + len(footer).to_bytes(4, "little") + MAGIC


class _FooterCheck:
    """One pass over a footer."""

    def __init__(self, data: bytes, schema: pq.ParquetSchema) -> None:
        self._data = data
        self._leaves = [schema.column(leaf) for leaf in range(len(schema))]
        self._types = [leaf.physical_type for leaf in self._leaves]
        self._widths = [
            _WIDTHS.get(kind, leaf.length)
            for kind, leaf in zip(self._types, self._leaves, strict=True)
        ]
        self._leaf = 0
        self._of_file: _Readers = {4: self._row_groups}
        self._of_row_group: _Readers = {1: self._columns}
        self._of_column: _Readers = {3: self._column_metadata, 8: self._crypto_metadata}
        self._of_column_metadata: _Readers = {
            1: self._type,
            4: self._codec,
            12: self._statistics,
            16: self._size_statistics,
        }
        self._of_statistics: _Readers = {
            **dict.fromkeys((1, 2), self._old_bound),
            **dict.fromkeys((5, 6), self._bound),
        }
        self._of_size_statistics: _Readers = {
            1: self._unencoded_bytes,
            2: self._repetition_levels,
            3: self._definition_levels,
        }

    def run(self) -> None:
        self._fields(0, self._of_file)

    def _row_groups(self, kind: int, at: int) -> int | None:
        return self._structs(kind, at, self._row_group)

    def _row_group(self, at: int) -> int:
        self._leaf = 0
        end = self._fields(at, self._of_row_group)
        if self._leaf != len(self._leaves):
            raise pa.ArrowInvalid(
                f"a row group of the file has {self._leaf} columns instead of {len(self._leaves)}"
            )
        return end

    def _columns(self, kind: int, at: int) -> int | None:
        return self._structs(kind, at, self._column)

    def _column(self, at: int) -> int:
        end = self._fields(at, self._of_column)
        self._leaf += 1
        return end

    def _crypto_metadata(self, kind: int, at: int) -> int | None:
        raise pa.ArrowInvalid("columns of the file are encrypted")

    def _column_metadata(self, kind: int, at: int) -> int | None:
        # The number of columns is compared at the end of the row group.
        is_known = kind == STRUCT and self._leaf < len(self._leaves)
        return self._fields(at, self._of_column_metadata) if is_known else None

    def _type(self, kind: int, at: int) -> int | None:
        number, after = zigzag(self._data, at)
        if not 0 <= number < len(_TYPES) or _TYPES[number] != self._types[self._leaf]:
            raise pa.ArrowInvalid("a column of the file has another type than in the schema")
        return after

    def _codec(self, kind: int, at: int) -> int | None:
        number, after = zigzag(self._data, at)
        if not 0 <= number < _CODECS:
            raise pa.ArrowInvalid(f"a column of the file has the unknown codec {number}")
        return after

    def _statistics(self, kind: int, at: int) -> int | None:
        return self._fields(at, self._of_statistics) if kind == STRUCT else None

    def _old_bound(self, kind: int, at: int) -> int | None:
        """Checks that a minimum or maximum is complete or empty."""
        return self._bound(kind, at, minimum=1)

    def _bound(self, kind: int, at: int, *, minimum: int = 0) -> int | None:
        """Checks that a minimum or maximum is complete, if it has at least so many bytes."""
        if kind == BINARY:
            length, _ = varint(self._data, at)
            if minimum <= length < self._widths[self._leaf]:
                raise pa.ArrowInvalid("a column of the file has truncated statistics")
        return None

    def _size_statistics(self, kind: int, at: int) -> int | None:
        return self._fields(at, self._of_size_statistics) if kind == STRUCT else None

    def _unencoded_bytes(self, kind: int, at: int) -> int | None:
        if self._types[self._leaf] != "BYTE_ARRAY":
            raise pa.ArrowInvalid("a column of the file has the size statistics of texts")
        return None

    def _repetition_levels(self, kind: int, at: int) -> int | None:
        return self._levels(kind, at, self._leaves[self._leaf].max_repetition_level)

    def _definition_levels(self, kind: int, at: int) -> int | None:
        return self._levels(kind, at, self._leaves[self._leaf].max_definition_level)

    def _levels(self, kind: int, at: int, max_level: int) -> int | None:
        """Checks that a histogram has an entry for every level, or none."""
        if kind == LIST:
            count, _, _ = list_head(self._data, at)
            if count not in (0, max_level + 1):
                raise pa.ArrowInvalid("a column of the file has statistics of other levels")
        return None

    def _structs(self, kind: int, at: int, read: Callable[[int], int]) -> int | None:
        if kind != LIST:
            return None
        count, element, at = list_head(self._data, at)
        if element != STRUCT:
            return skip_elements(self._data, count, element, at)
        for _ in range(count):
            at = read(at)
        return at

    def _fields(self, at: int, readers: _Readers) -> int:
        """Returns the position after a struct, some of whose fields are read."""
        data, number = self._data, 0
        while (head := data[at]) != STOP:
            if head < 16:
                number, kind, at = field_head(data, at, number)
            else:  # the usual form, without the call
                number, kind, at = number + (head >> 4), head & 15, at + 1
            reader = readers.get(number)
            after = None if reader is None else reader(kind, at)
            if after is not None:
                at = after
            elif I16 <= kind <= I64:  # as in `skip`, without the call
                while data[at] > 127:
                    at += 1
                at += 1
            elif kind == BINARY and data[at] < 128:
                at += data[at] + 1
            else:
                at = skip(data, at, kind)
        return at + 1


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

    def drop_bounds(number: int, group: Struct) -> Struct:
        chunks = group.structs(COLUMNS)
        for leaf in leaves.get(number, ()):
            chunks[leaf] = without_bounds(chunks[leaf])
        group.put(COLUMNS, LIST, ListValue(STRUCT, list(chunks)))
        return group

    size = footer_size(end)
    footer = with_edited_structs(end[-size : -len(MAGIC) - 4], ROW_GROUPS, drop_bounds)
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
