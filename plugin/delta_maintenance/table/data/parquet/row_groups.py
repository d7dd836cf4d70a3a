"""Column chunks that are copied from one Parquet file to another, without decoding them.

The bytes are kept, with the page index and the bloom filter. In the metadata, only the positions
change. `without_columns` leaves out partition columns, which Delta Spark adds to data files by
default (`delta.writePartitionColumnsToParquet`): readers take their values from the log.
Implements "File Metadata" and "Page Index" of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, BinaryIO

from delta_maintenance.checksums import crc32
from delta_maintenance.table.data.parquet import footers as fields
from delta_maintenance.table.data.parquet.files import read_range
from delta_maintenance.table.data.parquet.footers import Chunk
from delta_maintenance.table.data.parquet.pages import MalformedPageError, read_pages
from delta_maintenance.table.data.parquet.thrift import (
    I32,
    I64,
    LIST,
    STRUCT,
    ListValue,
    MalformedThriftError,
    Struct,
    Value,
    read_struct,
    struct_bytes,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

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


_PAGE_LOCATIONS, _PAGE_OFFSET = 1, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedChunk:
    """A column chunk in the new file."""

    source: Chunk
    tree: Struct
    """The Thrift struct with the positions in the new file."""
    crc: int
    """The CRC-32 of the bytes that were read from the source."""
    index: bytes | None
    """The offset index with the positions in the new file."""
    column_index: bytes | None
    bloom_filter: bytes | None

    def indexes(self, sink: BinaryIO) -> Iterator[bytes]:
        """Yields the bloom filter and the page index, each of which is written to the new file
        before the next one, and sets their positions.
        """
        metadata = Chunk.of(self.tree).metadata
        for data, tree, at, size in (
            (self.bloom_filter, metadata, fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE),
            (self.column_index, self.tree, fields.COLUMN_INDEX, fields.COLUMN_INDEX_SIZE),
            (self.index, self.tree, fields.OFFSET_INDEX, fields.OFFSET_INDEX_SIZE),
        ):
            if data is not None:
                tree.put(at, I64, sink.tell())
                tree.put(size, I32, len(data))
                yield data

    def has_metadata(self, file: BinaryIO, tree: Struct, stored: pq.ColumnChunkMetaData) -> bool:
        """Whether the column chunk `tree` of the new file, which Arrow parsed as `stored`, has the
        metadata and indexes of the source.
        """
        chunk, source = Chunk.of(tree), self.source
        start = stored.dictionary_page_offset or stored.data_page_offset
        first_page = (source.metadata.number(fields.DATA_PAGE) or 0) - source.start
        return (
            _without_offsets(tree) == _without_offsets(source.tree)
            and (start, stored.total_compressed_size) == (chunk.start, source.size)
            and stored.data_page_offset - start == first_page
            and self._has_indexes(file, chunk)
        )

    def has_bytes(self, file: BinaryIO, tree: Struct, piece: int) -> bool:
        """Whether the column chunk `tree` of the new file has the bytes of the source. They are
        read in pieces of `piece` bytes.
        """
        start = Chunk.of(tree).start
        crc, end = 0, start + self.source.size
        for at in range(start, end, piece):
            crc = crc32(read_range(file, at, min(piece, end - at)), crc)
        return crc == self.crc

    def _has_indexes(self, file: BinaryIO, chunk: Chunk) -> bool:
        """Whether page index and bloom filter are where the footer says, and match the pages."""
        byte_range = chunk.range_of(fields.OFFSET_INDEX, fields.OFFSET_INDEX_SIZE, chunk.tree)
        if (byte_range is None) != (self.index is None):
            return False
        if byte_range is not None:
            index, _ = read_struct(read_range(file, *byte_range))
            written, _ = read_struct(self.index or b"\0")
            if _move_pages(index, self.source.start - chunk.start) != _move_pages(
                written, self.source.start - Chunk.of(self.tree).start
            ):
                return False
            locations = [
                location.number(_PAGE_OFFSET) or 0 for location in index.structs(_PAGE_LOCATIONS)
            ]
            if any(not chunk.start <= at < chunk.start + chunk.size for at in locations):
                return False
        for data, tree, at, size in (
            (self.column_index, chunk.tree, fields.COLUMN_INDEX, fields.COLUMN_INDEX_SIZE),
            (self.bloom_filter, chunk.metadata, fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE),
        ):
            byte_range = chunk.range_of(at, size, tree)
            if (None if byte_range is None else read_range(file, *byte_range)) != data:
                return False
        return True


def copy_chunk(source: BinaryIO, chunk: Chunk, *, to: int) -> tuple[CopiedChunk, bytes]:
    """Reads a column chunk, to be written at the position `to` of a new file. Returns the chunk in
    the new file, and its bytes.

    Bytes that are not valid pages must not be copied: `MalformedPageError`,
    `MalformedThriftError`, or an error of Arrow or of the file.
    """
    data = read_range(source, chunk.start, chunk.size)
    values = chunk.metadata.number(fields.NUM_VALUES) or 0
    pages = read_pages(memoryview(data), values=values, codec="", texts=False, checksums=True)
    if (pages.values, pages.size) != (values, chunk.size):
        raise MalformedPageError("a column has other pages than its footer says")
    if pages.indexed and not pages.has_dictionary:
        raise MalformedPageError("a column lacks its dictionary")
    index, column_index = _page_index(source, chunk)
    byte_range = chunk.range_of(fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE, chunk.metadata)
    bloom_filter = None if byte_range is None else read_range(source, *byte_range)
    distance = to - chunk.start
    tree, metadata = _without_offsets(chunk.tree)
    for number in (fields.DATA_PAGE, fields.DICTIONARY_PAGE):
        position = chunk.metadata.number(number)
        if position:
            metadata.put(number, I64, position + distance)
    tree.put(fields.CHUNK_METADATA, STRUCT, metadata)
    position = chunk.tree.number(fields.CHUNK_OFFSET)
    tree.put(fields.CHUNK_OFFSET, I64, position + distance if position else 0)
    copied = CopiedChunk(
        source=chunk,
        tree=tree,
        crc=crc32(data),
        index=None if index is None else struct_bytes(_move_pages(index, distance)),
        column_index=column_index,
        bloom_filter=bloom_filter,
    )
    return copied, data


def _page_index(source: BinaryIO, chunk: Chunk) -> tuple[Struct | None, bytes | None]:
    """Reads the offset index and the bytes of the column index, which requires an offset index."""
    byte_range = chunk.range_of(fields.OFFSET_INDEX, fields.OFFSET_INDEX_SIZE, chunk.tree)
    if byte_range is None:
        return None, None
    index, _ = read_struct(read_range(source, *byte_range))
    locations = index.structs(_PAGE_LOCATIONS)
    if max(index.fields, default=0) > 2 or any(
        max(location.fields, default=0) > 3 for location in locations
    ):
        # An unknown field could contain a position.
        return None, None
    for location in locations:
        position = location.number(_PAGE_OFFSET)
        if position is None or not chunk.start <= position < chunk.start + chunk.size:
            raise MalformedThriftError("an offset index has pages of another column")
    byte_range = chunk.range_of(fields.COLUMN_INDEX, fields.COLUMN_INDEX_SIZE, chunk.tree)
    return index, None if byte_range is None else read_range(source, *byte_range)


def _move_pages(index: Struct, distance: int) -> Struct:
    """Returns an offset index whose pages were moved by so many bytes."""
    locations = []
    for location in index.structs(_PAGE_LOCATIONS):
        moved = location.copy()
        moved.put(_PAGE_OFFSET, I64, (location.number(_PAGE_OFFSET) or 0) + distance)
        locations.append(moved)
    moved_index = index.copy()
    moved_index.put(_PAGE_LOCATIONS, LIST, ListValue(STRUCT, list(locations)))
    return moved_index


def _without_offsets(tree: Struct) -> tuple[Struct, Struct]:
    """Returns copies of a column chunk and its metadata without positions."""
    metadata, chunk = Chunk.of(tree).metadata.copy(), tree.copy()
    metadata.drop(
        fields.DATA_PAGE, fields.DICTIONARY_PAGE, fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE
    )
    chunk.drop(
        fields.CHUNK_METADATA,
        fields.CHUNK_OFFSET,
        fields.OFFSET_INDEX,
        fields.OFFSET_INDEX_SIZE,
        fields.COLUMN_INDEX,
        fields.COLUMN_INDEX_SIZE,
    )
    return chunk, metadata
