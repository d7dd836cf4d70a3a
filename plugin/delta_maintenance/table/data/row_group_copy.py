"""Builds a new data file from the row groups of other files, without decoding them.

The bytes of each column chunk are copied, with its page index and its bloom filter. In the footer,
only the positions change. The new file is then read back from the store: the bytes of each chunk,
at the positions that Arrow finds in the new footer, must have the CRC-32 of the bytes that were
read from the source, and all other metadata must equal that of the source. Implements "File
Metadata" and "Page Index" of the Parquet format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.errors import DeltaMaintenanceError, StorageError, VerificationError
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.collect import StatisticsCollector
from delta_maintenance.protocol.statistics.columns import StatisticsColumns, StatisticsLeaf
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.compact_protocol import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    ListValue,
    MalformedThriftError,
    Struct,
    read_struct,
    struct_bytes,
)
from delta_maintenance.table.data import copy_source as fields
from delta_maintenance.table.data.copy_source import (
    MAGIC,
    MOST_CHUNK,
    Chunk,
    CopySource,
    FileFrame,
    key_value_list,
    read_range,
)
from delta_maintenance.table.data.data_file_writer import DataFileSpec, WrittenFile, leaf_paths
from delta_maintenance.table.data.footer_bounds import bounds_of
from delta_maintenance.table.data.parquet_input import ParquetInput
from delta_maintenance.table.data.read_back import require_schema
from delta_maintenance.table.parquet_footer import read_footer
from delta_maintenance.table.read.parquet_pages import MalformedPageError, read_pages

MOST_CHUNKS = 50_000
"""The maximum number of column chunks of a new file, whose footer is held in memory as objects."""
_PIECE = 1 << 20
_LAST_ORDINAL = (1 << 15) - 1
_PAGE_LOCATIONS, _PAGE_OFFSET = 1, 1


class NotCopiedError(Exception):
    """The rows of a source must be decoded. If a new file was created, no version refers to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copied:
    """A column chunk in the new file."""

    source: Chunk
    tree: Struct
    """The Thrift struct with the positions in the new file."""
    crc: int
    """The CRC-32 of the bytes that were read from the source."""
    index: Struct | None
    """The offset index with the positions in the new file."""
    column_index: bytes | None
    bloom_filter: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    tree: Struct
    source: pq.RowGroupMetaData
    created_by: str
    chunks: tuple[_Copied, ...]
    begins_source: bool
    """Whether this is the first row group of a source."""


def copy_file(
    store: Store,
    name: str,
    sources: Sequence[CopySource],
    frame: FileFrame,
    spec: DataFileSpec,
    *,
    proves: bool,
) -> WrittenFile:
    """Writes one file with all row groups of the sources, in order, and reads it back.

    With `proves`, all bytes of the column chunks are compared and the first rows of each source are
    decoded; otherwise only the footer and the columns that statistics need are read back. Raises
    `NotCopiedError` for a source that cannot be copied, `VerificationError` if the new file is not
    as intended, and `StorageError`.
    """
    rows = sum(source.metadata.num_rows for source in sources)
    with ExitStack() as stack:
        sink = stack.enter_context(store.create(name))
        groups = list(_copied_groups(sink, sources))
        size = _finish(sink, groups, frame, rows)
    status = store.stat(name)
    if status is None or status.size != size:
        raise VerificationError(
            f"the new data file has {status.size if status else 'no'} bytes instead of {size}",
            file=name,
            remedy="find out what else writes to this folder",
        )
    try:
        # The bytes of a local file are still in the processor's cache when their CRC is computed.
        # Each read of a remote one is a request.
        piece = _PIECE if store.is_near else MOST_CHUNK
        with store.open(name) as file:
            stats = _read_back(file, name, groups, rows, spec, piece if proves else None)
    except (pa.ArrowException, OSError, MalformedThriftError) as error:
        problem = " ".join(str(error).split())[:300]
        raise VerificationError(
            f"the new data file cannot be read back ({problem})", file=name
        ) from None
    return WrittenFile(name=name, rows=rows, size=size, modified_ms=status.modified_ms, stats=stats)


@contextmanager
def reading_sources() -> Iterator[None]:
    """Converts errors of a source to `NotCopiedError`; decoding the source then reports them."""
    try:
        yield
    except StorageError:
        raise
    except (
        pa.ArrowException,
        DeltaMaintenanceError,
        OSError,
        MalformedThriftError,
        MalformedPageError,
        UnicodeDecodeError,
    ) as error:
        raise NotCopiedError(str(error)) from None


def _copied_groups(sink: BinaryIO, sources: Sequence[CopySource]) -> Iterator[_Group]:
    _write(sink, MAGIC)
    number = 0
    for source in sources:
        metadata = source.metadata
        with reading_sources():
            created_by = metadata.created_by
            file = source.opened()
        with file:
            for at, tree in enumerate(source.groups):
                chunks = tuple(_copy(sink, file, Chunk.of(chunk)) for chunk in _columns(tree))
                yield _Group(
                    tree=_numbered(tree, number),
                    source=metadata.row_group(at),
                    created_by=created_by,
                    chunks=chunks,
                    begins_source=at == 0,
                )
                number += 1


def _columns(group: Struct) -> list[Struct]:
    return group.structs(fields.COLUMNS)


def _copy(sink: BinaryIO, source: BinaryIO, chunk: Chunk) -> _Copied:
    with reading_sources():
        data = read_range(source, chunk.start, chunk.size)
        # Bytes that are not valid pages must not be copied.
        values = chunk.metadata.number(fields.NUM_VALUES) or 0
        read_pages(memoryview(data), values=values, codec="", texts=False, checksums=True)
        index, column_index = _page_index(source, chunk)
        place = chunk.range_of(fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE, chunk.metadata)
        bloom_filter = None if place is None else read_range(source, *place)
    distance = sink.tell() - chunk.start
    _write(sink, data)
    metadata = chunk.metadata.copy()
    metadata.drop(fields.DICTIONARY_PAGE, fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE)
    for number in (fields.DATA_PAGE, fields.DICTIONARY_PAGE):
        position = chunk.metadata.number(number)
        if position:
            metadata.put(number, I64, position + distance)
    tree = chunk.tree.copy()
    tree.drop(
        fields.OFFSET_INDEX,
        fields.OFFSET_INDEX_SIZE,
        fields.COLUMN_INDEX,
        fields.COLUMN_INDEX_SIZE,
    )
    tree.put(fields.CHUNK_METADATA, STRUCT, metadata)
    position = chunk.tree.number(fields.CHUNK_OFFSET)
    tree.put(fields.CHUNK_OFFSET, I64, position + distance if position else 0)
    return _Copied(
        source=chunk,
        tree=tree,
        crc=zlib.crc32(data),
        index=None if index is None else _moved(index, distance),
        column_index=column_index,
        bloom_filter=bloom_filter,
    )


def _page_index(source: BinaryIO, chunk: Chunk) -> tuple[Struct | None, bytes | None]:
    """Reads the offset index and the bytes of the column index, which requires an offset index."""
    place = chunk.range_of(fields.OFFSET_INDEX, fields.OFFSET_INDEX_SIZE, chunk.tree)
    if place is None:
        return None, None
    index, _ = read_struct(read_range(source, *place))
    locations = index.structs(_PAGE_LOCATIONS)
    if max(index.fields) > 2 or any(max(location.fields) > 3 for location in locations):
        # An unknown field could contain a position.
        return None, None
    place = chunk.range_of(fields.COLUMN_INDEX, fields.COLUMN_INDEX_SIZE, chunk.tree)
    return index, None if place is None else read_range(source, *place)


def _moved(index: Struct, distance: int) -> Struct:
    locations = []
    for location in index.structs(_PAGE_LOCATIONS):
        moved = location.copy()
        moved.put(_PAGE_OFFSET, I64, (location.number(_PAGE_OFFSET) or 0) + distance)
        locations.append(moved)
    found = index.copy()
    found.put(_PAGE_LOCATIONS, LIST, ListValue(STRUCT, list(locations)))
    return found


def _numbered(tree: Struct, number: int) -> Struct:
    group = tree.copy()
    group.drop(fields.ORDINAL, fields.GROUP_OFFSET)
    if number <= _LAST_ORDINAL:
        group.put(fields.ORDINAL, I16, number)
    return group


def _finish(sink: BinaryIO, groups: Sequence[_Group], frame: FileFrame, rows: int) -> int:
    """Writes the indexes and the footer, and returns the size of the file in bytes."""
    for group in groups:
        for chunk in group.chunks:
            _append_indexes(sink, chunk)
    trees = []
    for group in groups:
        tree = group.tree
        tree.put(fields.COLUMNS, LIST, ListValue(STRUCT, [chunk.tree for chunk in group.chunks]))
        tree.put(fields.GROUP_OFFSET, I64, min(_start(chunk) for chunk in group.chunks))
        trees.append(tree)
    footer = Struct()
    footer.put(fields.VERSION, I32, frame.version)
    footer.put(fields.SCHEMA, LIST, frame.schema)
    footer.put(fields.NUM_ROWS, I64, rows)
    footer.put(fields.ROW_GROUPS, LIST, ListValue(STRUCT, list(trees)))
    if frame.key_values:
        pairs = ListValue(STRUCT, list(key_value_list(frame.key_values)))
        footer.put(fields.KEY_VALUES, LIST, pairs)
    if frame.created_by:
        footer.put(fields.CREATED_BY, BINARY, frame.created_by)
    if frame.column_orders is not None:
        footer.put(fields.COLUMN_ORDERS, LIST, frame.column_orders)
    data = struct_bytes(footer)
    _write(sink, data + len(data).to_bytes(4, "little") + MAGIC)
    return sink.tell()


def _append_indexes(sink: BinaryIO, chunk: _Copied) -> None:
    metadata = Chunk.of(chunk.tree).metadata
    for data, tree, at, size in (
        (chunk.bloom_filter, metadata, fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE),
        (chunk.column_index, chunk.tree, fields.COLUMN_INDEX, fields.COLUMN_INDEX_SIZE),
        (
            None if chunk.index is None else struct_bytes(chunk.index),
            chunk.tree,
            fields.OFFSET_INDEX,
            fields.OFFSET_INDEX_SIZE,
        ),
    ):
        if data is not None:
            tree.put(at, I64, sink.tell())
            tree.put(size, I32, len(data))
            _write(sink, data)


def _start(chunk: _Copied) -> int:
    return Chunk.of(chunk.tree).start


def _write(sink: BinaryIO, data: bytes) -> None:
    try:
        sink.write(data)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write the new data file: {error}") from error


def _read_back(
    file: BinaryIO,
    name: str,
    groups: Sequence[_Group],
    rows: int,
    spec: DataFileSpec,
    piece: int | None,
) -> str:
    """Returns the statistics of the new file; `VerificationError` if it differs from what was
    written. The bytes are compared in pieces of this size, or not at all.
    """
    with ParquetInput(file) as parquet:
        if (parquet.rows, parquet.row_groups) != (rows, len(groups)):
            raise VerificationError(
                f"the new data file has {parquet.rows} rows in {parquet.row_groups} row groups "
                f"instead of {rows} in {len(groups)}",
                file=name,
            )
        require_schema(parquet.schema, spec.layout.schema, name)
        footer, _ = read_footer(file)
        trees = read_struct(footer)[0].structs(fields.ROW_GROUPS)
        for number, (group, tree) in enumerate(zip(groups, trees, strict=True)):
            found = parquet.metadata.row_group(number)
            problem = _difference(file, group, tree, found, piece)
            if problem is not None:
                raise VerificationError(f"the new data file has {problem}", file=name)
        # These are the bytes of the sources: if they cannot be decoded, a source is damaged.
        with reading_sources():
            if piece is not None:
                names = spec.layout.schema.names
                for number, group in enumerate(groups):
                    if group.begins_source:
                        parquet.decode_first(names, number)
            return _statistics(parquet, groups, rows, spec)


def _difference(
    file: BinaryIO, group: _Group, tree: Struct, found: pq.RowGroupMetaData, piece: int | None
) -> str | None:
    """Returns the first difference of a row group from its source, as a clause, or None."""
    columns = _columns(tree)
    if found.num_rows != group.source.num_rows or len(columns) != len(group.chunks):
        return "a row group with other rows or columns"
    for at, (copied, column) in enumerate(zip(group.chunks, columns, strict=True)):
        stored, chunk, source = found.column(at), Chunk.of(column), copied.source
        start = stored.dictionary_page_offset or stored.data_page_offset
        first_page = (source.metadata.number(fields.DATA_PAGE) or 0) - source.start
        if (
            _unplaced(column) != _unplaced(source.tree)
            or (start, stored.total_compressed_size) != (chunk.start, source.size)
            or stored.data_page_offset - start != first_page
            or not _has_indexes(file, copied, chunk)
        ):
            return f"other metadata for the column {stored.path_in_schema}"
        if piece is not None and _crc(file, start, source.size, piece) != copied.crc:
            return f"other bytes for the column {stored.path_in_schema}"
    return None


def _crc(file: BinaryIO, start: int, size: int, piece: int) -> int:
    crc, end = 0, start + size
    for at in range(start, end, piece):
        crc = zlib.crc32(read_range(file, at, min(piece, end - at)), crc)
    return crc


def _has_indexes(file: BinaryIO, copied: _Copied, chunk: Chunk) -> bool:
    """Whether page index and bloom filter are where the footer says, and match the pages."""
    place = chunk.range_of(fields.OFFSET_INDEX, fields.OFFSET_INDEX_SIZE, chunk.tree)
    if (place is None) != (copied.index is None):
        return False
    if place is not None:
        index, _ = read_struct(read_range(file, *place))
        if _moved(index, copied.source.start - chunk.start) != _moved(
            copied.index or Struct(), copied.source.start - _start(copied)
        ):
            return False
        locations = [each.number(_PAGE_OFFSET) or 0 for each in index.structs(_PAGE_LOCATIONS)]
        if any(not chunk.start <= at < chunk.start + chunk.size for at in locations):
            return False
    for data, tree, at, size in (
        (copied.column_index, chunk.tree, fields.COLUMN_INDEX, fields.COLUMN_INDEX_SIZE),
        (copied.bloom_filter, chunk.metadata, fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE),
    ):
        place = chunk.range_of(at, size, tree)
        if (None if place is None else read_range(file, *place)) != data:
            return False
    return True


def _unplaced(tree: Struct) -> tuple[Struct, Struct]:
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


def _statistics(
    parquet: ParquetInput, groups: Sequence[_Group], rows: int, spec: DataFileSpec
) -> str:
    """Returns the JSON text of `stats`, from the footers or, where necessary, from decoded rows."""
    schema = spec.layout.schema
    places = {path: at for at, path in enumerate(leaf_paths(schema, schema.names))}
    collector = StatisticsCollector(spec.statistics, schema)
    collector.rows = rows
    decoded: list[StatisticsLeaf] = []
    for leaf in spec.statistics.leaves:
        kind, at = _type_of(spec.layout, leaf.path), places.get(".".join(leaf.path))
        bounds = [
            None if at is None else bounds_of(leaf, kind, group.source.column(at), group.created_by)
            for group in groups
        ]
        known = [each for each in bounds if each is not None]
        if len(known) < len(bounds):
            decoded.append(leaf)
            continue
        for each in known:
            collector.offer_bounds(leaf.path, each)
    if decoded:
        wanted = {leaf.path[0] for leaf in decoded}
        names = [name for name in schema.names if name in wanted]
        reading = StatisticsCollector(
            StatisticsColumns(leaves=tuple(decoded), tight_bounds=False),
            pa.schema([schema.field(name) for name in names]),
        )
        for batch in parquet.batches(names):
            reading.offer(batch)
        collector.take_over(reading)
    return collector.render()


def _type_of(layout: DataFileLayout, path: Sequence[str]) -> pa.DataType:
    kind = layout.schema.field(path[0]).type
    for name in path[1:]:
        kind = kind.field(name).type
    return kind
