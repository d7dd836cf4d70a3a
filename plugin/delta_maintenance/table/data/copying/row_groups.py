"""Builds a new data file from row groups of other files, without decoding them.

The bytes of each column chunk are copied, with its page index and its bloom filter. In the footer,
only the positions change. Rows that cannot be copied, and columns of row tracking that a source
lacks, are encoded as row groups in memory and added in the same way. Memory holds one of them
before and after it is encoded. The new file is then read back from the store (`proof`). Implements
"File Metadata" and "Page Index" of the Parquet format.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.checksums import crc32
from delta_maintenance.errors import CorruptTableError, StorageError, VerificationError
from delta_maintenance.parquet import footers as fields
from delta_maintenance.parquet.files import read_range
from delta_maintenance.parquet.footers import COLUMNS, MAGIC, ROW_GROUPS, Chunk, read_footer
from delta_maintenance.parquet.pages import MalformedPageError, read_pages
from delta_maintenance.parquet.thrift import (
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
from delta_maintenance.protocol.data_files.row_digest import RowSums
from delta_maintenance.protocol.statistics.collect import StatisticsCollector
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.data.copying.proof import (
    CopiedChunk,
    CopiedGroup,
    Expected,
    TrackingChecksums,
    moved_index,
    read_back_copy,
)
from delta_maintenance.table.data.copying.sources import (
    MOST_CHUNK,
    FileFrame,
    NotCopiedError,
    OwnFile,
    key_value_list,
    reading_sources,
)
from delta_maintenance.table.data.data_file_writer import (
    GROUP_ROWS,
    DataFileSpec,
    DataFileWriter,
    WrittenFile,
    memory_bytes,
)

_PIECE = 1 << 20
_LAST_ORDINAL = (1 << 15) - 1
_PAGE_LOCATIONS, _PAGE_OFFSET = 1, 1

_NAME = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSource:
    """A row group to copy."""

    tree: Struct
    metadata: pq.RowGroupMetaData
    created_by: str
    chunks: Sequence[tuple[BinaryIO, Struct]]
    """Each column chunk, and the file that contains it."""
    origin: Literal["first", "next", "encoded"]
    """Whether this is the first or another row group of a source, or was encoded in memory."""
    tracking: TrackingChecksums | None = None
    """The checksums of the columns of row tracking, if these were encoded for this row group."""


def copy_file(
    store: Store,
    name: str,
    sources: Iterable[GroupSource],
    frame: FileFrame,
    spec: DataFileSpec,
    *,
    encoded: StatisticsCollector,
    partition: Mapping[str, str | None],
    proves: bool,
) -> tuple[WrittenFile, RowSums]:
    """Writes one file with the row groups, in order, and reads it back.

    `encoded` has the statistics of the encoded row groups once `sources` is exhausted. Also returns
    the digest of their rows. With `proves`, all bytes of the column chunks are compared; encoded
    rows are decoded, and so are the first rows of each source. Otherwise only the footer, the
    columns of row tracking and the columns that statistics need are read back. Raises
    `NotCopiedError` for a source that cannot be copied, `VerificationError` if the new file is not
    as intended, and `StorageError`.
    """
    with ExitStack() as stack:
        sink = stack.enter_context(store.create(name))
        groups = list(_copied_groups(sink, sources))
        rows = sum(group.source.num_rows for group in groups)
        size = _finish(sink, groups, frame, rows)
    status = store.stat(name)
    if status is None or status.size != size:
        raise VerificationError(
            f"the new data file has {status.size if status else 'no'} bytes instead of {size}",
            file=name,
            remedy="find out what else writes to this folder",
        )
    expected = Expected(rows=rows, groups=groups, encoded=encoded, partition=partition)
    try:
        # The bytes of a local file are still in the processor's cache when their CRC is computed.
        # Each read of a remote one is a request.
        piece = _PIECE if store.is_near else MOST_CHUNK
        with store.open(name) as file:
            stats, sums = read_back_copy(
                file, name, expected, spec, piece=piece if proves else None
            )
    except (pa.ArrowException, OSError, MalformedThriftError, CorruptTableError) as error:
        problem = " ".join(str(error).split())[:300]
        raise VerificationError(
            f"the new data file cannot be read back ({problem})", file=name
        ) from None
    written = WrittenFile(
        name=name, rows=rows, size=size, modified_ms=status.modified_ms, stats=stats
    )
    return written, sums


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedGroup:
    """An encoded row group."""

    file: io.BytesIO
    tree: Struct
    metadata: pq.RowGroupMetaData
    created_by: str

    @property
    def columns(self) -> list[Struct]:
        """The column chunks."""
        return self.tree.structs(COLUMNS)


class GroupEncoder:
    """Encodes rows as row groups of the usual size."""

    def __init__(self, spec: DataFileSpec, *, names_calendar: bool) -> None:
        """`names_calendar` says whether the footer of the new file names a calendar, without which
        Spark 3 does not read early dates.
        """
        self.statistics = StatisticsCollector(spec.statistics, spec.layout.schema)
        self.dictionaries: Sequence[str] = ()
        """String columns of the last row group that repeat their values."""
        self._spec = spec
        self._names_calendar = names_calendar
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> Iterator[EncodedGroup]:
        """Adds rows; yields a row group once there are enough of them."""
        self._waiting.append(batch)
        self._bytes += memory_bytes(batch)
        self._rows += batch.num_rows
        if self._bytes >= self._spec.group_bytes or self._rows >= GROUP_ROWS:
            yield from self.flush()

    def flush(self) -> Iterator[EncodedGroup]:
        """Yields the remaining rows.

        Raises `NotCopiedError` if they include early dates, and the file names no calendar.
        """
        batches, self._waiting = self._waiting, []
        self._bytes = self._rows = 0
        if not batches:
            return
        data, self.dictionaries, early = _encoded(self._spec, batches, self.statistics)
        if early and not self._names_calendar:
            raise NotCopiedError("the copied row groups come from a file without a calendar")
        yield from _groups(data)


def encoded_row_tracking(
    rows: pa.Table, spec: DataFileSpec
) -> tuple[EncodedGroup, TrackingChecksums]:
    """Encodes the row IDs and row commit versions of one row group, none of which is null."""
    checksums = TrackingChecksums()
    if not checksums.add(rows):
        raise AssertionError("readers complete missing row IDs")
    sink = io.BytesIO()
    _, version = rows.column_names
    pq.write_table(
        rows,
        sink,
        row_group_size=rows.num_rows,
        version="2.6",
        data_page_version=spec.page_version,
        compression=spec.codec,
        use_dictionary=[version],
        store_schema=False,
        write_page_index=True,
    )
    [group] = _groups(sink.getvalue())
    return group, checksums


def own_file(spec: DataFileSpec) -> OwnFile:
    """Returns the footer of a file with encoded row groups."""
    files = [spec.layout, spec.layout.untracked]
    nothing = StatisticsColumns(leaves=(), tight_bounds=False)
    tracked, untracked = (
        _encoded(
            DataFileSpec(layout=layout, statistics=nothing),
            (),
            StatisticsCollector(nothing, layout.schema),
        )[0]
        for layout in files
    )
    return OwnFile.of(tracked, untracked)


def _copied_groups(sink: BinaryIO, sources: Iterable[GroupSource]) -> Iterator[CopiedGroup]:
    _write(sink, MAGIC)
    for number, source in enumerate(sources):
        chunks = tuple(_copy(sink, file, Chunk.of(chunk)) for file, chunk in source.chunks)
        yield CopiedGroup(
            tree=_group_tree(source, number, chunks),
            source=source.metadata,
            created_by=source.created_by,
            chunks=chunks,
            origin=source.origin,
            tracking=source.tracking,
        )


def _copy(sink: BinaryIO, source: BinaryIO, chunk: Chunk) -> CopiedChunk:
    with reading_sources():
        data = read_range(source, chunk.start, chunk.size)
        # Bytes that are not valid pages must not be copied.
        values = chunk.metadata.number(fields.NUM_VALUES) or 0
        pages = read_pages(memoryview(data), values=values, codec="", texts=False, checksums=True)
        if (pages.values, pages.size) != (values, chunk.size):
            raise MalformedPageError("a column has other pages than its footer says")
        if pages.indexed and not pages.has_dictionary:
            raise MalformedPageError("a column lacks its dictionary")
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
    return CopiedChunk(
        source=chunk,
        tree=tree,
        crc=crc32(data),
        index=None if index is None else struct_bytes(moved_index(index, distance)),
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
    if max(index.fields, default=0) > 2 or any(
        max(location.fields, default=0) > 3 for location in locations
    ):
        # An unknown field could contain a position.
        return None, None
    for location in locations:
        position = location.number(_PAGE_OFFSET)
        if position is None or not chunk.start <= position < chunk.start + chunk.size:
            raise MalformedThriftError("an offset index has pages of another column")
    place = chunk.range_of(fields.COLUMN_INDEX, fields.COLUMN_INDEX_SIZE, chunk.tree)
    return index, None if place is None else read_range(source, *place)


def _group_tree(source: GroupSource, number: int, chunks: Sequence[CopiedChunk]) -> Struct:
    """Returns the metadata of a row group with these chunks."""
    group = source.tree.copy()
    group.drop(fields.ORDINAL, fields.GROUP_OFFSET)
    if number <= _LAST_ORDINAL:
        group.put(fields.ORDINAL, I16, number)
    if source.tracking is not None:
        group.put(fields.GROUP_BYTES, I64, sum(_decoded_size(chunk) for chunk in chunks))
        if group.get(fields.GROUP_COMPRESSED) is not None:
            group.put(fields.GROUP_COMPRESSED, I64, sum(chunk.source.size for chunk in chunks))
    return group


def _decoded_size(chunk: CopiedChunk) -> int:
    return chunk.source.metadata.number(fields.TOTAL_DECODED) or 0


def _finish(sink: BinaryIO, groups: Sequence[CopiedGroup], frame: FileFrame, rows: int) -> int:
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


def _append_indexes(sink: BinaryIO, chunk: CopiedChunk) -> None:
    metadata = Chunk.of(chunk.tree).metadata
    for data, tree, at, size in (
        (chunk.bloom_filter, metadata, fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE),
        (chunk.column_index, chunk.tree, fields.COLUMN_INDEX, fields.COLUMN_INDEX_SIZE),
        (chunk.index, chunk.tree, fields.OFFSET_INDEX, fields.OFFSET_INDEX_SIZE),
    ):
        if data is not None:
            tree.put(at, I64, sink.tell())
            tree.put(size, I32, len(data))
            _write(sink, data)


def _start(chunk: CopiedChunk) -> int:
    return Chunk.of(chunk.tree).start


def _write(sink: BinaryIO, data: bytes) -> None:
    try:
        sink.write(data)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write the new data file: {error}") from error


def _encoded(
    spec: DataFileSpec, batches: Sequence[pa.RecordBatch], statistics: StatisticsCollector
) -> tuple[bytes, Sequence[str], bool]:
    store = MemoryStore()
    with DataFileWriter(store, _NAME, spec, statistics=statistics) as writer:
        for batch in batches:
            writer.write(batch)
    return store.read(_NAME), writer.dictionaries, writer.has_early_days


def _groups(data: bytes) -> Iterator[EncodedGroup]:
    file = io.BytesIO(data)
    metadata = pq.read_metadata(file)
    footer, _ = read_footer(file)
    for at, tree in enumerate(read_struct(footer)[0].structs(ROW_GROUPS)):
        yield EncodedGroup(
            file=file,
            tree=tree,
            metadata=metadata.row_group(at),
            created_by=metadata.created_by,
        )
