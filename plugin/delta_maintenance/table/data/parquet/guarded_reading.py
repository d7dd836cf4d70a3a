"""Reads Parquet files of a log within `ReadLimits`, whatever the files contain.

A few kilobytes of Parquet can decode to gigabytes: a dictionary with one long string, pages that
expand a thousandfold, rows that are all null, a footer with a million columns. Therefore, the
compressed bytes of some row groups are read first and their page headers are checked. Only then are
they decoded, in batches whose number of rows depends on the size of the rows.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import OversizedFileError
from delta_maintenance.limits import ReadLimits
from delta_maintenance.table.data.parquet.files import FileForArrow, joined_ranges
from delta_maintenance.table.data.parquet.footer_reader import TAIL_BYTES, StoredFooter
from delta_maintenance.table.data.parquet.pages import ChunkPages, read_pages

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH_ROWS = 1 << 17
_BATCH_BYTES = 16 << 20
"""The size of a usual batch. Larger ones leave the caches, and take new memory each time."""
_SLICE_BYTES = 64 << 20
"""The compressed size of row groups that are read together."""
_MOST_LIST = 250_000
"""The maximum number of columns, row groups and similar elements in a footer."""
_VALUE_OVERHEAD = 16
"""The overhead of a value in bytes: its offset, and its share of the null bitmap."""
_OLD_WRITERS_PADDING = 100
"""The bytes by which chunks of the first Parquet writers can be longer than their footers say."""
_ALONE_BYTES = 1 << 20
"""Up to this compressed size in bytes, threads cost more than they save."""
_CLOSE = 8 << 10
"""Ranges of a file with a smaller gap are read as one."""
_TEXT = "BYTE_ARRAY"


def open_footer(source: BinaryIO, limits: ReadLimits) -> tuple[pq.FileMetaData, pa.Schema]:
    """Reads the footer of a Parquet file.

    `OversizedFileError` if it is too long, takes too much memory once it is decoded, or claims more
    rows than a file of this size can contain; otherwise the errors of pyarrow, also for columns
    that pyarrow cannot be asked about.
    """
    footer = StoredFooter(source)
    size = footer.file_size
    if footer.size > max(limits.footer_bytes, TAIL_BYTES):
        raise OversizedFileError(f"its footer has {footer.size} bytes", remedy=limits.remedy())
    max_bytes = limits.decoded_footer_bytes
    memory = footer.memory(exact_above=max_bytes, max_bytes=max_bytes)
    if memory > max_bytes:
        raise OversizedFileError(
            f"its footer may take {memory} bytes of memory", remedy=limits.remedy()
        )
    file = _open(footer.ahead)
    footer.require_readable_columns(file.schema)
    rows = file.metadata.num_rows
    if not 0 <= rows <= limits.rows(size):
        raise OversizedFileError(
            f"its {size} bytes claim to contain {rows} rows", remedy=limits.remedy()
        )
    return file.metadata, file.schema_arrow


def guarded_batches(
    source: BinaryIO,
    metadata: pq.FileMetaData,
    *,
    row_groups: Sequence[int],
    columns: Sequence[str],
    limits: ReadLimits,
    among: Iterable[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields some columns of some row groups of a Parquet file, by dotted names, in batches.

    `among` are leaf columns that include those of the named columns, if the caller knows them.
    `OversizedFileError` before anything larger than the limits is decoded; for damage the errors of
    pyarrow, and `ValueError`.
    """
    size = source.seek(0, io.SEEK_END)
    leaves = _leaves(metadata, columns, range(metadata.num_columns) if among is None else among)
    remaining = limits.decoded_bytes(size)
    for groups in _slices(metadata, row_groups, leaves):
        chunks = [_chunk(metadata, group, leaf) for group in groups for leaf in leaves]
        stored = _Stored.load(source, size, chunks, limits)
        rows = min(_batch_rows(stored, [c for c in chunks if c.group == g], limits) for g in groups)
        file = _open(stored, metadata=metadata, pre_buffer=False)
        decoded = file.iter_batches(
            batch_size=rows,
            row_groups=list(groups),
            columns=list(columns),
            use_threads=sum(chunk.end - chunk.start for chunk in chunks) > _ALONE_BYTES,
        )
        for batch in _join_batches(decoded, min(_BATCH_BYTES, limits.batch_bytes) // 2):
            expanded = _without_dictionaries(batch)
            remaining -= expanded.nbytes
            if remaining < 0:
                raise OversizedFileError(
                    f"its {size} bytes decode to more than {limits.decoded_bytes(size)} bytes",
                    remedy=limits.remedy(),
                )
            yield expanded


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A column of a row group: its position, and its description in the footer."""

    group: int
    path: str
    start: int
    end: int
    rows: int
    values: int
    codec: str
    width: int | None
    """The size of a value in bytes; None for strings."""
    repeated: bool
    """Whether a row may have any number of values."""


def _read(source: BinaryIO, length: int) -> memoryview:
    # NumPy asks for huge pages, with which a large new buffer takes half of the time.
    buffer = np.empty(length, np.uint8).data
    stream = cast(io.BufferedIOBase, source)
    filled = 0
    while filled < length and (count := stream.readinto(buffer[filled:])):
        filled += count
    return buffer[:filled]


def _open(source: Any, **options: Any) -> pq.ParquetFile:
    # Loads clients of object stores, which a log without a checkpoint does not need.
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        source,
        thrift_container_size_limit=_MOST_LIST,
        # Nanoseconds, the default for INT96, end in 2262 and wrap around silently.
        coerce_int96_timestamp_unit="us",
        **options,
    )


def _leaves(metadata: pq.FileMetaData, columns: Sequence[str], among: Iterable[int]) -> list[int]:
    """Returns the leaf columns below the named ones."""
    schema = metadata.schema
    prefixes = tuple(f"{column}." for column in columns)
    names = set(columns)
    paths = ((leaf, schema.column(leaf).path) for leaf in among)
    return [leaf for leaf, path in paths if path in names or path.startswith(prefixes)]


def _slices(
    metadata: pq.FileMetaData, groups: Sequence[int], leaves: Sequence[int]
) -> Iterator[list[int]]:
    """Yields row groups that are read together."""
    together: list[int] = []
    size = 0
    for group in groups:
        row_group = metadata.row_group(group)
        stored_bytes = sum(row_group.column(leaf).total_compressed_size for leaf in leaves)
        if together and size + stored_bytes > _SLICE_BYTES:
            yield together
            together, size = [], 0
        together.append(group)
        size += stored_bytes
    if together:
        yield together


def _chunk(metadata: pq.FileMetaData, group: int, leaf: int) -> _Chunk:
    row_group = metadata.row_group(group)
    chunk_group, column = row_group.column(leaf), metadata.schema.column(leaf)
    start = chunk_group.data_page_offset
    dictionary = chunk_group.dictionary_page_offset if chunk_group.has_dictionary_page else None
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    widths = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "FIXED_LEN_BYTE_ARRAY": column.length}
    return _Chunk(
        group=group,
        path=column.path,
        start=start,
        end=start + chunk_group.total_compressed_size,
        rows=row_group.num_rows,
        values=chunk_group.num_values,
        codec=chunk_group.compression,
        width=None
        if chunk_group.physical_type == _TEXT
        else widths.get(chunk_group.physical_type, 8),
        repeated=column.max_repetition_level > 0,
    )


def _batch_rows(stored: _Stored, chunks: Sequence[_Chunk], limits: ReadLimits) -> int:
    """Returns how many rows of a row group may be decoded together."""
    row_bytes = 1.0
    for chunk in chunks:
        pages = read_pages(
            stored.between(chunk.start, chunk.end + _OLD_WRITERS_PADDING),
            values=chunk.values,
            codec=chunk.codec,
            texts=chunk.width is None,
        )
        row_bytes += _row_bytes(chunk, pages, limits)
    return max(1, min(_BATCH_ROWS, int(min(_BATCH_BYTES, limits.batch_bytes) / row_bytes)))


def _row_bytes(chunk: _Chunk, pages: ChunkPages, limits: ReadLimits) -> float:
    """Estimates the size of a row's values of a column in bytes."""
    if pages.largest > limits.page_bytes:
        raise _oversized_error(f"a page of {chunk.path} has {pages.largest} bytes", limits)
    width: float = chunk.width or 0
    if chunk.width is None and pages.indexed:
        width = pages.entry
    if width > limits.value_bytes:
        raise _oversized_error(f"a value of {chunk.path} may have {int(width)} bytes", limits)
    if chunk.repeated:
        # All values may belong to one row, and a row cannot be divided.
        everything = pages.plain_bytes + chunk.values * (width + _VALUE_OVERHEAD)
        if pages.shares_prefixes:
            everything += chunk.values * pages.largest
        if everything > limits.log_memory:
            raise _oversized_error(f"{chunk.path} may take {int(everything)} bytes", limits)
        return everything / max(chunk.rows, 1)
    if pages.shares_prefixes:
        width = max(width, pages.largest)
    return max(width, pages.density) + _VALUE_OVERHEAD


def _oversized_error(problem: str, limits: ReadLimits) -> OversizedFileError:
    return OversizedFileError(f"{problem} in memory", remedy=limits.remedy())


def _without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Expands dictionaries, because the limits refer to the expanded size."""
    fields = [field.with_type(_plain(field.type)) for field in batch.schema]
    plain = pa.schema(fields)
    return batch if plain.equals(batch.schema) else batch.cast(plain)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _join_batches(batches: Iterable[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Joins small batches: rows that could be large often are not."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _BATCH_ROWS or size >= max_bytes:
            yield from _one(waiting)
            waiting, rows, size = [], 0, 0
    yield from _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class _Stored(FileForArrow):
    """Some ranges of a file in memory; other parts cannot be read."""

    def __init__(self, size: int, ranges: list[tuple[int, memoryview]]) -> None:
        super().__init__(size)
        self._ranges = ranges

    @classmethod
    def load(
        cls, source: BinaryIO, size: int, chunks: Sequence[_Chunk], limits: ReadLimits
    ) -> _Stored:
        """Reads the chunks, each of which is completely in the file."""
        if any(not 0 <= chunk.start <= chunk.end <= size for chunk in chunks):
            raise ValueError("a column is outside the file")
        byte_ranges = [
            (chunk.start, min(chunk.end + _OLD_WRITERS_PADDING, size)) for chunk in chunks
        ]
        spans = joined_ranges(byte_ranges, gap=_CLOSE)
        if sum(end - start for start, end in spans) > limits.log_memory // 4:
            raise _oversized_error("a compressed row group is too large for memory", limits)
        ranges = []
        for start, end in spans:
            source.seek(start)
            ranges.append((start, _read(source, end - start)))
        return cls(size, ranges)

    def between(self, start: int, end: int) -> memoryview:
        """Returns the bytes of a range, up to the end of the file."""
        return self._between(start, min(end, self._size))

    def _between(self, start: int, end: int) -> memoryview:
        for range_start, data in self._ranges:
            if range_start <= start and end <= range_start + len(data):
                return data[start - range_start : end - range_start]
        raise ValueError("a column is not at the position in the footer")
