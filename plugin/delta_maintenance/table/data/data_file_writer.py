"""Writes new data files and collects their statistics.

A file has a unique name and becomes visible as a whole or not at all. The size of a row group is
limited by its bytes in memory. If a worker is idle, it encodes a row group while the next one is
filled; otherwise a writer holds about one row group. Implements "Data Files", "Per-file Statistics"
and the requirements for writers of "Delta Data Type to Parquet Type Mappings".
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.errors import StorageError, VerificationError
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.collect import StatisticsCollector
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.storage.core.base import Store, new_file
from delta_maintenance.table.data.parquet.footers import leaves_with_nan, without_nan_bounds
from delta_maintenance.table.parallel import IdleWorkers, OverlappedTasks

GROUP_BYTES = 32 << 20
"""The size in memory, before encoding, at which a row group is written."""
GROUP_ROWS = 1 << 20
"""The maximum number of rows in a row group."""
_ENCODED_ROWS = 1 << 16
"""Values of a column that are encoded at once; far fewer would cost more time than the saved memory
is worth.
"""
_ENCODED_BYTES = 4 << 20
"""Bytes of rows that are encoded at once. Arrow ends a page only between two such batches."""
_SAMPLE = 1 << 14
"""The number of rows in the sample that shows which columns repeat their values."""
_FIRST_SAMPLE = 1 << 11
"""The number of rows that show first whether a column consists of different values."""
_DIFFERENT = 0.95
"""A column does not repeat its values if more than this share of the first rows is distinct."""
_LEAST_SAMPLE = 64
"""The minimum number of rows in a sample, whatever their length."""
_REPEATED = 0.5
"""A string column repeats its values if at most this share of the sample is distinct."""
_FALSE_POSITIVES = 0.01
"""The share of absent values that a bloom filter does not exclude, as parquet-mr has it."""
_FILTER_BYTES = 4
"""Bytes of all bloom filters for each row, at most: the filters take as much memory as the rows."""
_WORDS = 4
"""A column of another type repeats its values if each occurs this often on average."""
_GREGORIAN = (datetime(1582, 10, 15).date() - date(1970, 1, 1)).days
_STANDARD_TIME = (datetime(1900, 1, 1).date() - date(1970, 1, 1)).days
_DAY_MICROS = 86_400_000_000
_CALENDAR = {"org.apache.spark.version": "3.1.0"}
"""Tells Spark 3 that early dates and timestamps are in the proleptic Gregorian calendar: the first
version of Spark whose files all use it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFileSpec:
    """How to write new data files for a version of a table. Can be sent to executors."""

    layout: DataFileLayout
    statistics: StatisticsColumns
    codec: str = "zstd"
    page_version: str = "1.0"
    group_bytes: int = GROUP_BYTES
    group_rows: int = GROUP_ROWS
    bloom_filters: frozenset[str] = frozenset()
    """The paths of the leaves that get bloom filters, as in `leaf_paths`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A data file in the store that no version of the table contains yet."""

    name: str
    """The literal name in the store."""
    rows: int
    size: int
    """Bytes, according to the store."""
    modified_ms: int
    """Milliseconds since 1970-01-01 UTC, according to the store."""
    stats: str
    """The JSON text of `stats`."""
    bounds: str = ""
    """`stats` with all bounds that are known, also if others cannot be stated; empty if no column
    is clustered.
    """


class DataFileWriter:
    """Context manager that writes one file. After an exception in its block, no file appears."""

    def __init__(
        self,
        store: Store,
        name: str,
        spec: DataFileSpec,
        idle_workers: IdleWorkers | None = None,
        *,
        statistics: StatisticsCollector | None = None,
        sorted_by: Sequence[str] | None = None,
    ) -> None:
        """If the name is already taken, the end of the block raises `FileExistsError`.

        `statistics` collects the statistics of several files. `sorted_by` is the path of a leaf in
        whose order the rows are, with nulls first; the footer states it.
        """
        self._store = store
        self._name = name
        self._spec = spec
        self._schema = spec.layout.schema
        self._sorted_by = None if sorted_by is None else tuple(sorted_by)
        self._statistics = statistics or StatisticsCollector(spec.statistics, self._schema)
        self._stack = ExitStack()
        self._sink = self._stack.enter_context(new_file(store, name))
        self._output = _Output(self._sink)
        self._parquet: pq.ParquetWriter | None = None
        self._repeated: list[str] | None = None
        """The columns to encode with a dictionary in Parquet; None until the sample is complete."""
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._dictionary_at: dict[str, int] = {}
        self._overlapped = OverlappedTasks(idle_workers)
        self._encoding: Future[None] | None = None
        self._groups = 0
        self._nan: dict[int, frozenset[int]] = {}
        """The leaves with NaN, by row group."""
        self.has_early_days = False
        """Whether a date or time depends on the calendar or on former time zone rules."""
        self._rows = self._size = 0
        self.written = 0
        """Bytes that had been written to the store when the last row group was begun."""
        self.is_closed = False
        self.dictionaries: tuple[str, ...] = ()
        """String columns that repeat their values; empty until the sample is complete."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_closed = True
        try:
            if error is None:
                self._finish()
        except BaseException as failure:
            self._leave(type(failure), failure, failure.__traceback__)
            raise
        self._leave(kind, error, traceback)

    @property
    def rows(self) -> int:
        """The number of rows passed to `write` so far."""
        return self._rows

    @property
    def has_chosen_encodings(self) -> bool:
        """Whether the sample is complete, so that `dictionaries` will not change."""
        return self._repeated is not None

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows with the columns of the layout; string columns may be dictionaries."""
        if not batch.num_rows:
            return
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, self._spec.group_rows - self._waiting_rows)
            start += piece.num_rows
            self._waiting.append(piece)
            self._waiting_bytes += memory_bytes(piece) + self._new_dictionary_bytes(piece)
            self._waiting_rows += piece.num_rows
            self._rows += piece.num_rows
            if self._repeated is None and self._waiting_rows >= _SAMPLE:
                self._choose_encodings()
            is_full = self._waiting_rows >= self._spec.group_rows
            if is_full or self._waiting_bytes >= self._spec.group_bytes:
                self._write_group()

    def wait(self) -> None:
        """Waits until the current row group is encoded."""
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.result()

    def result(self) -> WrittenFile:
        """Returns the written file, after the end of the block.

        `VerificationError` if the file is missing in the store or has another size.
        """
        status = self._store.stat(self._name)
        if status is None or status.size != self._size:
            raise VerificationError(
                f"the new data file has {status.size if status else 'no'} bytes "
                f"instead of {self._size}",
                file=self._name,
                remedy="find out what else writes to this folder",
            )
        is_clustered = any(leaf.clustered for leaf in self._spec.statistics.leaves)
        return WrittenFile(
            name=self._name,
            rows=self.rows,
            size=status.size,
            modified_ms=status.modified_ms,
            stats=self._statistics.render(),
            bounds=self._statistics.render(all_bounds=True) if is_clustered else "",
        )

    def _new_dictionary_bytes(self, piece: pa.RecordBatch) -> int:
        """Returns the size of dictionaries that are not those of the previous rows."""
        size = 0
        for name, column in zip(piece.schema.names, piece.columns, strict=True):
            if pa.types.is_dictionary(column.type):
                data = column.dictionary.buffers()[-1]
                address = 0 if data is None else data.address
                if self._dictionary_at.get(name) != address:
                    size += column.dictionary.nbytes
                self._dictionary_at[name] = address
        return size

    def _finish(self) -> None:
        if self._waiting or self._parquet is None:
            self._write_group()
        self.wait()
        assert self._parquet is not None
        if self.has_early_days:
            self._parquet.add_key_value_metadata(_CALENDAR)
        if not self._nan:
            self._parquet.close()
        else:
            # Whether a column has bounds is fixed when Arrow opens the file, before its values.
            self._output.held = io.BytesIO()
            self._parquet.close()
            self._sink.write(without_nan_bounds(self._output.held.getvalue(), self._nan))
        # A bin keeps its writers, and Arrow's writer keeps buffers after it is closed.
        self._parquet = None
        self._size = self._sink.tell()

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._overlapped.close()
        if error is not None and self._parquet is not None:
            # Closing the writer would write a footer into a file that is discarded.
            self._parquet.is_open = False
        self._stack.__exit__(kind, error, traceback)

    def _write_group(self) -> None:
        if self._parquet is None:
            self._parquet = self._open()
        batches = self._waiting
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0
        self.wait()
        self.written = self._sink.tell()
        self._encoding = self._overlapped.begin(partial(self._encode, self._parquet, batches))

    def _encode(self, parquet: pq.ParquetWriter, batches: Sequence[pa.RecordBatch]) -> None:
        table = _one_group(batches, self._schema, self.dictionaries)
        self._statistics.offer(table)
        self.has_early_days = self.has_early_days or _has_early_days(table)
        if table.num_rows:
            if leaves := leaves_with_nan(table, self._schema):
                self._nan[self._groups] = leaves
            self._groups += 1
            try:
                parquet.write_table(table, row_group_size=table.num_rows)
            except StorageError:
                raise
            except OSError as error:
                raise StorageError(
                    f"cannot write the new data file: {error}", file=self._name
                ) from error

    def _choose_encodings(self) -> None:
        """Chooses the encoding of each column by the first rows."""
        repeated = self._repeated = _repeated_columns(self._waiting, self._schema)
        text = {field.name for field in self._schema if _is_text(field.type)}
        self.dictionaries = tuple(name for name in repeated if name in text)
        fields = [
            field.with_type(pa.dictionary(pa.int32(), field.type))
            if field.name in self.dictionaries
            else field
            for field in self._schema
        ]
        self._schema = pa.schema(fields)

    def _open(self) -> pq.ParquetWriter:
        """Opens the Parquet writer; the rows of the first row group are waiting."""
        if self._repeated is None:
            self._choose_encodings()
        # Row IDs would be much smaller as DELTA_BINARY_PACKED. But once a filter and a page index
        # let the vectorized reader of Spark 4.2 skip rows, it returns wrong values of them.
        return pq.ParquetWriter(
            self._output,
            self._schema,
            version="2.6",
            data_page_version=self._spec.page_version,
            compression=self._spec.codec,
            use_dictionary=leaf_paths(self._schema, self._repeated or ()),
            store_decimal_as_integer=True,
            store_schema=False,
            sorting_columns=self._sorting_columns(),
            write_page_index=True,
            write_batch_size=self._encoded_rows(),
            **self._bloom_filter_options(),
        )

    def _bloom_filter_options(self) -> dict[str, Any]:
        paths = self._spec.bloom_filters & filterable_paths(self._schema)
        if not paths:
            return {}
        # All row groups have filters of one size. The first row group is the largest one.
        max_values = self._spec.group_bytes // (len(paths) * _FILTER_BYTES)
        options = {"ndv": max(1, min(self._waiting_rows, max_values)), "fpp": _FALSE_POSITIVES}
        return {"bloom_filter_options": dict.fromkeys(sorted(paths), options)}

    def _sorting_columns(self) -> list[pq.SortingColumn] | None:
        if self._sorted_by is None:
            return None
        leaf = leaf_names(self._schema, self._schema.names).index(self._sorted_by)
        return [pq.SortingColumn(leaf, nulls_first=True)]

    def _encoded_rows(self) -> int:
        width = self._waiting_bytes // max(1, self._waiting_rows)
        return max(1, min(_ENCODED_ROWS, _ENCODED_BYTES // max(1, width)))


class _Output(io.RawIOBase):
    """The output of Arrow, which goes to a file until it is held in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.held: io.BytesIO | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return (self._file if self.held is None else self.held).write(data)


def _one_group(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, dictionaries: Sequence[str]
) -> pa.Table:
    """Returns the rows of one row group; each column is a dictionary in all batches or in none."""
    columns = []
    for at, field in enumerate(schema):
        chunks = [batch.column(at) for batch in batches]
        if field.name in dictionaries:
            encoded = [
                chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
                for chunk in chunks
            ]
            columns.append(pa.chunked_array(encoded, field.type).unify_dictionaries())
        else:
            plain = [
                chunk.cast(field.type) if pa.types.is_dictionary(chunk.type) else chunk
                for chunk in chunks
            ]
            columns.append(pa.chunked_array(plain, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _repeated_columns(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[str]:
    """Returns the columns to encode with a dictionary in Parquet. These include all nested columns,
    because Arrow abandons a dictionary that grows too large.
    """
    repeated = []
    for at, field in enumerate(schema):
        if pa.types.is_nested(field.type):
            repeated.append(field.name)
            continue
        if pa.types.is_boolean(field.type):
            continue
        sample = _sample([batch.column(at) for batch in batches], field.type)
        head = sample.slice(0, _FIRST_SAMPLE)
        if not len(sample) or _distinct(head) > len(head) * _DIFFERENT:
            continue
        different = _distinct(sample)
        limit = _REPEATED if _is_text(field.type) else 1 / _WORDS
        if different <= len(sample) * limit:
            repeated.append(field.name)
    return repeated


def _distinct(values: pa.Array) -> int:
    # Faster than `count_distinct`.
    return int(len(pc.unique(values)) - (values.null_count > 0))


def _sample(chunks: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    pieces, rows, limit = [], 0, _sampled_rows(chunks)
    for chunk in chunks:
        piece = chunk.slice(0, limit - rows)
        pieces.append(piece.cast(kind) if pa.types.is_dictionary(piece.type) else piece)
        rows += len(piece)
        if rows >= limit:
            break
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)


def _sampled_rows(chunks: Sequence[pa.Array]) -> int:
    """Returns the number of rows in a sample, which is smaller for long rows."""
    values = [c.dictionary if pa.types.is_dictionary(c.type) else c for c in chunks]
    width: int = sum(value.nbytes for value in values) // max(1, sum(map(len, values)))
    return max(_LEAST_SAMPLE, min(_SAMPLE, _ENCODED_BYTES // max(1, width)))


def leaf_paths(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Returns the paths of the leaves of these columns in new data files, as Arrow writes them."""
    return [".".join(path) for path in leaf_names(schema, columns)]


def filterable_paths(schema: pa.Schema) -> frozenset[str]:
    """Returns the paths of the leaves that can have bloom filters, which booleans cannot."""
    return frozenset(
        ".".join(names)
        for column in schema
        for names, kind in _leaves(column.type, (column.name,))
        if not pa.types.is_boolean(kind)
    )


def writes_bloom_filters() -> bool:
    """Whether this version of Arrow shows and writes bloom filters."""
    return hasattr(pq.ColumnChunkMetaData, "bloom_filter_offset")


def leaf_names(schema: pa.Schema, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the names on the path to each leaf. Unlike the paths, these are unambiguous if names
    contain dots.
    """
    return [
        names for column in columns for names, _ in _leaves(schema.field(column).type, (column,))
    ]


def _leaves(
    kind: pa.DataType, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(field.type, (*above, field.name))
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_type, (*above, "key_value", "key"))
        yield from _leaves(kind.item_type, (*above, "key_value", "value"))
    elif pa.types.is_list(kind):
        yield from _leaves(kind.value_type, (*above, "list", "element"))
    else:
        yield above, kind


def memory_bytes(batch: pa.RecordBatch) -> int:
    """Returns the size of rows in memory; only the indices of dictionaries, which are shared."""
    return sum(
        column.indices.nbytes if pa.types.is_dictionary(column.type) else column.nbytes
        for column in batch.columns
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _has_early_days(rows: pa.Table) -> bool:
    """Whether any value is a date or time that depends on the calendar or the time zone rules."""
    return any(_is_early(chunk) for column in rows.columns for chunk in column.chunks)


def _is_early(values: pa.Array) -> bool:
    kind = values.type
    if pa.types.is_date(kind):
        earliest = pc.min(values.view(pa.int32())).as_py()
        return earliest is not None and earliest < _GREGORIAN
    if pa.types.is_timestamp(kind):
        earliest = pc.min(values.view(pa.int64())).as_py()
        return earliest is not None and earliest // _DAY_MICROS < _STANDARD_TIME
    if pa.types.is_struct(kind):
        return any(_is_early(values.field(at)) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _is_early(values.keys) or _is_early(values.items)
    return pa.types.is_list(kind) and _is_early(values.values)
