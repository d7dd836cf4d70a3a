"""Reads data files as streams of Arrow batches, one row group at a time, in bounded memory.

A stream holds the compressed bytes of one row group, or of parts of a large one, and one batch of
decoded rows.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.schema.data_columns import StoredColumns, is_hybrid
from delta_maintenance.protocol.schema.types import ColumnMappingMode
from delta_maintenance.table.data.read_ahead import ReadAhead
from delta_maintenance.table.parquet_footer import require_readable_file

ROWS = 1 << 15
"""The maximum number of rows in a batch."""
BATCH_BYTES = 8 << 20
"""The approximate maximum size of a batch in bytes; a single row may be larger."""
WHOLE_FILE = 8 << 20
"""Files up to this size in bytes are read in one request."""
_GROUP_BYTES = 32 << 20
"""The maximum compressed size of a row group that is read ahead as a whole. Of a larger one, parts
of each column are read.
"""
_SAMPLE_ROWS, _SAMPLE_BUFFER = 1 << 10, 1 << 16
_UNKNOWN_TEXT = 1 << 12
"""The assumed length of strings in a column without bounds, because writers omit long bounds."""
_SPARK = b"org.apache.spark.version"
_INSTANT = pa.timestamp("us", "UTC")


class ParquetInput:
    """Context manager for reading one Parquet file."""

    def __init__(
        self,
        source: BinaryIO | bytes,
        *,
        dictionaries: Sequence[str] = (),
    ) -> None:
        """Opens a file, or its content as bytes.

        `dictionaries` are the string columns to read as Arrow dictionaries. Errors are those of
        Arrow.
        """
        self._stack = ExitStack()
        if isinstance(source, bytes):
            opened = pa.BufferReader(source)
        else:
            opened = self._stack.enter_context(source)
        try:
            self.metadata = pq.read_metadata(opened)
            plain = io.BytesIO(source) if isinstance(source, bytes) else opened
            require_readable_file(plain, self.metadata.schema)
            ahead = isinstance(source, bytes) or _largest_group(self.metadata) <= _GROUP_BYTES
            self._ahead: ReadAhead | None = None
            if ahead and not isinstance(source, bytes):
                opened = self._ahead = ReadAhead(opened)
            self._options = {
                "metadata": self.metadata,
                # Otherwise Arrow's I/O threads read the file. They may hold the last reference to
                # it when the interpreter ends, and then abort the process (apache/arrow#34314).
                "pre_buffer": False,
                "buffer_size": 0 if ahead else self._buffer_size(),
                "arrow_extensions_enabled": False,
                # Otherwise changed values of a damaged file would become those of a sound one.
                "page_checksum_verification": True,
            }
            self._source = opened
            self._file = pq.ParquetFile(
                opened,
                read_dictionary=_present(dictionaries, self.metadata.schema),
                coerce_int96_timestamp_unit="us",
                **self._options,
            )
            self.schema: pa.Schema = self._file.schema_arrow
            self.parquet_schema: pq.ParquetSchema = self._file.schema
            leaves = self.parquet_schema
            self._leaves = [leaves.column(at) for at in range(len(leaves))]
        except UnicodeDecodeError:
            self._stack.close()
            raise pa.ArrowInvalid("the footer has a text that is not UTF-8") from None
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._stack.close()

    @property
    def rows(self) -> int:
        """The number of physical rows according to the footer."""
        return int(self.metadata.num_rows)

    @property
    def row_groups(self) -> int:
        """The number of row groups."""
        return int(self.metadata.num_row_groups)

    @property
    def group_starts(self) -> list[int]:
        """The position of the first row of each row group, counted from 0."""
        counts = [self.metadata.row_group(at).num_rows for at in range(self.row_groups)]
        return list(accumulate(counts, initial=0))[:-1]

    @property
    def int96(self) -> frozenset[str]:
        """The top-level columns with timestamps of the physical type INT96."""
        return frozenset(
            leaf.path.split(".")[0] for leaf in self._leaves if leaf.physical_type == "INT96"
        )

    @property
    def schema_in_utc(self) -> pa.Schema:
        """The schema, in which top-level INT96 columns are instants, as Spark stores them."""
        return pa.schema(
            [
                field.with_type(_INSTANT)
                if field.name in self.int96 and field.type == pa.timestamp("us")
                else field
                for field in self.schema
            ]
        )

    @property
    def leaf_paths(self) -> list[str]:
        """The paths of all leaves, in the order of the file."""
        return [leaf.path for leaf in self._leaves]

    def stored_columns(
        self, mode: ColumnMappingMode, *, widens: bool = True, verbatim: bool = False
    ) -> StoredColumns:
        """Returns how to find and convert the columns of this file.

        `CorruptTableError` if columns are found by ID and the file contains no IDs.
        """
        if mode == "id" and not any(
            b"PARQUET:field_id" in (field.metadata or {}) for field in self.schema
        ):
            raise CorruptTableError("the data file contains no column IDs, which reading requires")
        key_values = self.metadata.metadata
        hybrid = is_hybrid(key_values, int96=False) or (
            bool(self.int96) and is_hybrid(key_values, int96=True)
        )
        return StoredColumns(mode=mode, hybrid_calendar=hybrid, widens=widens, verbatim=verbatim)

    def batches(
        self, columns: Sequence[str], groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields all rows in order, with these top-level columns, from the given or all row groups.

        `CorruptTableError` if the number of rows differs from the footer, and `RefusedError` if
        timestamps are finer than microseconds.
        """
        seen = expected = 0
        exact = self._nanoseconds(columns)
        for group in range(self.row_groups) if groups is None else groups:
            expected += int(self.metadata.row_group(group).num_rows)
            size = self._batch_rows(group, columns)
            if self._ahead is not None:
                self._ahead.load(self._ranges(group, columns))
            batches = self._file.iter_batches(
                size, row_groups=[group], columns=list(columns), use_threads=False
            )
            finer = None
            if exact is not None:
                file, names = exact
                finer = file.iter_batches(
                    size, row_groups=[group], columns=names, use_threads=False
                )
            for batch in batches:
                if finer is not None:
                    _require_microseconds(batch, next(finer))
                seen += batch.num_rows
                yield _only(batch, columns)
        if groups is None:
            expected = self.rows
        if seen != expected:
            raise CorruptTableError(f"the data file has {seen} rows, its footer says {expected}")

    def decode_first(self, columns: Sequence[str], group: int) -> None:
        """Decodes some rows at the beginning of a row group. Reads little more than their pages."""
        options = {**self._options, "buffer_size": _SAMPLE_BUFFER}
        file = pq.ParquetFile(self._source, **options)
        batches = file.iter_batches(
            _SAMPLE_ROWS, row_groups=[group], columns=list(columns), use_threads=False
        )
        next(batches, None)

    def _nanoseconds(self, columns: Sequence[str]) -> tuple[pq.ParquetFile, list[str]] | None:
        """Opens the INT96 columns again as nanoseconds.

        None if there are no such columns, or if their writer stores only microseconds.
        """
        names = [name for name in columns if name in self.int96]
        if not names or _SPARK in (self.metadata.metadata or {}):
            return None
        file = pq.ParquetFile(self._source, coerce_int96_timestamp_unit="ns", **self._options)
        return file, names

    def _batch_rows(self, group: int, columns: Sequence[str]) -> int:
        found = self.metadata.row_group(group)
        rows = max(1, int(found.num_rows))
        per_row: int = 0
        for at, leaf in self._leaves_of(columns):
            chunk = found.column(at)
            width = max(8, int(chunk.total_uncompressed_size) // rows)
            if leaf.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page:
                # Repeated strings need less space in the file than in memory.
                width = max(width, _text_length(chunk))
            per_row += width
        return max(1, min(ROWS, BATCH_BYTES // max(1, per_row)))

    def _ranges(self, group: int, columns: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yields the first and the last position of each of these column chunks."""
        found = self.metadata.row_group(group)
        for at, _ in self._leaves_of(columns):
            chunk = found.column(at)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            yield start, start + chunk.total_compressed_size

    def _leaves_of(self, columns: Sequence[str]) -> Iterator[tuple[int, pq.ColumnSchema]]:
        wanted = set(columns)
        for at, leaf in enumerate(self._leaves):
            if leaf.path.split(".")[0] in wanted or leaf.path in wanted:
                yield at, leaf

    def _buffer_size(self) -> int:
        columns = max(1, int(self.metadata.num_columns))
        return max(1 << 16, min(4 << 20, _GROUP_BYTES // columns))


def _largest_group(metadata: pq.FileMetaData) -> int:
    """Returns the size in bytes of the largest row group, decoded or stored.

    A footer may understate one of the two.
    """
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    return max(
        (
            max(
                group.total_byte_size,
                sum(group.column(at).total_compressed_size for at in range(group.num_columns)),
            )
            for group in groups
        ),
        default=0,
    )


def _text_length(chunk: pq.ColumnChunkMetaData) -> int:
    """Estimates the length in bytes of the strings of a column from its bounds."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        empty = statistics is not None and statistics.null_count == chunk.num_values
        return 0 if empty else _UNKNOWN_TEXT
    raw = (statistics.min_raw, statistics.max_raw)
    return max(len(value) if isinstance(value, bytes) else 0 for value in raw)


def _only(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Returns these columns in this order. For `a`, pyarrow also reads a column named `a.b`."""
    names = batch.schema.names
    if names == list(columns):
        return batch
    return batch.select([names.index(name) for name in columns if name in names])


def _present(names: Sequence[str], schema: pq.ParquetSchema) -> list[str]:
    """Returns the names that exist in the file; Arrow rejects others, such as later columns."""
    if not names:
        return []
    paths = {schema.column(at).path for at in range(len(schema))}
    return [name for name in names if name in paths]


def _require_microseconds(batch: pa.RecordBatch, finer: pa.RecordBatch) -> None:
    for name in finer.schema.names:
        if not _same_instants(batch.column(name), finer.column(name)):
            raise RefusedError(
                f"the column {name} holds timestamps finer than microseconds, which tables do not",
                remedy="rewrite the file with the engine that wrote it",
            )


def _same_instants(micros: pa.Array, nanos: pa.Array) -> bool:
    kind = micros.type
    if pa.types.is_timestamp(kind):
        # Nanoseconds of distant years overflow in the same way on both sides.
        valid = micros.is_valid().to_numpy(zero_copy_only=False)
        left = micros.view(pa.int64()).fill_null(0).to_numpy() * np.int64(1000)
        right = nanos.view(pa.int64()).fill_null(0).to_numpy()
        return bool(np.array_equal(left[valid], right[valid]))
    if pa.types.is_struct(kind):
        return all(
            _same_instants(micros.field(at), nanos.field(at)) for at in range(kind.num_fields)
        )
    if pa.types.is_map(kind):
        return _same_instants(micros.keys, nanos.keys) and _same_instants(micros.items, nanos.items)
    if pa.types.is_list(kind):
        return _same_instants(micros.values, nanos.values)
    return True
