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

from delta_maintenance.errors import CorruptTableError, StorageError, VerificationError
from delta_maintenance.protocol.statistics.collect import StatisticsCollector
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.storage.core.base import Store, new_file
from delta_maintenance.storage.memory import MemoryStore
from delta_maintenance.table.data.bins import DigestKind, RowsDigest, RowsSum
from delta_maintenance.table.data.copying.proof import (
    CopiedGroup,
    Expected,
    TrackingChecksums,
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
    DataFileSpec,
    DataFileWriter,
    WrittenFile,
    memory_bytes,
)
from delta_maintenance.table.data.parquet import footers as fields
from delta_maintenance.table.data.parquet.footer_reader import StoredFooter
from delta_maintenance.table.data.parquet.footers import (
    COLUMNS,
    MAGIC,
    ROW_GROUPS,
    Chunk,
    end_of_file,
)
from delta_maintenance.table.data.parquet.row_groups import CopiedChunk, copy_chunk
from delta_maintenance.table.data.parquet.thrift import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    ListValue,
    MalformedThriftError,
    Struct,
    struct_bytes,
)

_PIECE = 1 << 20
_LAST_ORDINAL = (1 << 15) - 1
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
    kind: DigestKind,
) -> tuple[WrittenFile, RowsSum]:
    """Writes one file with the row groups, in order, and reads it back.

    `encoded` has the statistics of the encoded row groups once `sources` is exhausted. Also returns
    the digest of their rows, of this `kind`. Unless rows are only counted, all bytes of the column
    chunks are compared; encoded rows are decoded, and so are the first rows of each source.
    Otherwise only the footer, the columns of row tracking and the columns that statistics need are
    read back. Raises
    `NotCopiedError` for a source that cannot be copied, `VerificationError` if the new file is not
    as intended, and `StorageError`.
    """
    with ExitStack() as stack:
        sink = stack.enter_context(new_file(store, name))
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
    digest = RowsDigest(spec.layout.schema, partition, kind)
    expected = Expected(rows=rows, groups=groups, encoded=encoded, digest=digest)
    try:
        # The bytes of a local file are still in the processor's cache when their CRC is computed.
        # Each read of a remote one is a request.
        piece = _PIECE if store.is_near else MOST_CHUNK
        with store.open(name) as file:
            stats = read_back_copy(
                file, name, expected, spec, piece=None if kind == "counts" else piece
            )
    except (pa.ArrowException, OSError, MalformedThriftError, CorruptTableError) as error:
        problem = " ".join(str(error).split())[:300]
        raise VerificationError(
            f"the new data file cannot be read back ({problem})", file=name
        ) from None
    written = WrittenFile(
        name=name, rows=rows, size=size, modified_ms=status.modified_ms, stats=stats
    )
    return written, digest.total()


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
        if self._bytes >= self._spec.group_bytes or self._rows >= self._spec.group_rows:
            yield from self.flush()

    def flush(self) -> Iterator[EncodedGroup]:
        """Yields the remaining rows.

        Raises `NotCopiedError` if they include early dates, and the file names no calendar.
        """
        batches, self._waiting = self._waiting, []
        self._bytes = self._rows = 0
        if not batches:
            return
        data, self.dictionaries, early = _encode_groups(self._spec, batches, self.statistics)
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
        _encode_groups(
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
        chunks = tuple(_copy_chunk(sink, file, Chunk.of(chunk)) for file, chunk in source.chunks)
        yield CopiedGroup(
            tree=_group_tree(source, number, chunks),
            source=source.metadata,
            created_by=source.created_by,
            chunks=chunks,
            origin=source.origin,
            tracking=source.tracking,
        )


def _copy_chunk(sink: BinaryIO, source: BinaryIO, chunk: Chunk) -> CopiedChunk:
    position = sink.tell()
    with reading_sources():
        copied, data = copy_chunk(source, chunk, to=position)
    _write(sink, data)
    return copied


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
            for index in chunk.indexes(sink):
                _write(sink, index)
    trees = []
    for group in groups:
        tree = group.tree
        tree.put(fields.COLUMNS, LIST, ListValue(STRUCT, [chunk.tree for chunk in group.chunks]))
        tree.put(
            fields.GROUP_OFFSET, I64, min(Chunk.of(chunk.tree).start for chunk in group.chunks)
        )
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
    _write(sink, end_of_file(struct_bytes(footer)))
    return sink.tell()


def _write(sink: BinaryIO, data: bytes) -> None:
    try:
        sink.write(data)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write the new data file: {error}") from error


def _encode_groups(
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
    for at, tree in enumerate(StoredFooter(file).tree.structs(ROW_GROUPS)):
        yield EncodedGroup(
            file=file, tree=tree, metadata=metadata.row_group(at), created_by=metadata.created_by
        )
