"""Reads data files as streams of Arrow batches, one row group at a time, in bounded memory.

A stream holds the compressed bytes of one row group, or of parts of a large one, and pages and rows
of at most `READING_BYTES`. Batches are cut by the size of their rows, which is bounded before
anything is decoded (`decoded_sizes`).
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import BinaryIO, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.schema.data_columns import StoredColumns, is_hybrid
from delta_maintenance.protocol.schema.types import ColumnMappingMode
from delta_maintenance.table.data import row_batches
from delta_maintenance.table.data.parquet.decoded_sizes import (
    MOST_DICTIONARY,
    READING_BYTES,
    Leaf,
    LeafSizes,
    leaf_sizes,
    one_row,
    require_row,
    rows_together,
    too_large,
)
from delta_maintenance.table.data.parquet.files import FilePart, ReadAhead
from delta_maintenance.table.data.parquet.footer_reader import StoredFooter, largest_group
from delta_maintenance.table.data.parquet.pages import PLAIN, PageBytes
from delta_maintenance.table.data.row_batches import (
    expand_texts,
    halves,
    most_expanded,
    only,
    require_column_ids,
    require_microseconds,
    text_sizes,
)

ROWS = 1 << 15
"""The maximum number of rows in a batch."""
WHOLE_FILE = 8 << 20
"""Files up to this size in bytes are read in one request."""
GROUP_BYTES = 32 << 20
"""The maximum compressed size of a row group that is read ahead as a whole. Of a larger one, parts
of each column are read.
"""
_SAMPLE_ROWS, _SAMPLE_BUFFER = 1 << 10, 1 << 16
_OLD_WRITERS = re.compile(r"parquet-mr(?: version 1\.[0-2]\.|$)")
_PADDING = 100
"""The number of bytes by which column chunks of these writers can be longer than they state."""
_SPARK = b"org.apache.spark.version"
_INSTANT = pa.timestamp("us", "UTC")


class ParquetInput:
    """Context manager for reading one Parquet file."""

    def __init__(
        self,
        source: BinaryIO | bytes,
        *,
        dictionaries: Collection[str] = (),
        reading_bytes: int = READING_BYTES,
    ) -> None:
        """Opens a file, or its content as bytes. Errors are those of Arrow, and `RefusedError` for
        a footer that takes too much memory.

        `reading_bytes` is the maximum memory of the footer, of what `hold` is called for, and of
        the pages and rows that are decoded at a time.
        """
        self.dictionaries = dictionaries
        """The string columns that are read as Arrow dictionaries where their encoding allows it.
        May be changed while batches are read.
        """
        self._last: dict[str, pa.Array] = {}
        self._stack = ExitStack()
        if isinstance(source, bytes):
            opened = pa.BufferReader(source)
        else:
            opened = self._stack.enter_context(source)
        try:
            plain = io.BytesIO(source) if isinstance(source, bytes) else opened
            footer = StoredFooter(plain)
            self.metadata, memory = footer.decode(max_bytes=reading_bytes // 2)
            footer.require_readable_columns(self.metadata.schema)
            self._most = reading_bytes - memory
            ahead = isinstance(source, bytes) or largest_group(self.metadata) <= GROUP_BYTES
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
            self._bytes = memoryview(source) if isinstance(source, bytes) else None
            self.size = footer.file_size
            """The size of the file in bytes."""
            self._files: dict[tuple[str, ...], pq.ParquetFile] = {}
            file = self._file(())
            self.schema: pa.Schema = file.schema_arrow
            self.parquet_schema: pq.ParquetSchema = file.schema
            leaves = self.parquet_schema
            self._leaves = [leaves.column(at) for at in range(len(leaves))]
            self.leaf_paths = [leaf.path for leaf in self._leaves]
            """The paths of all leaves, in the order of the file."""
            self.int96 = frozenset(
                path.split(".")[0]
                for path, leaf in zip(self.leaf_paths, self._leaves, strict=True)
                if leaf.physical_type == "INT96"
            )
            """The top-level columns with timestamps of the physical type INT96."""
            self._leaves_by_name = defaultdict[str, list[int]](list)
            for at, path in enumerate(self.leaf_paths):
                # A top-level column is also found by the whole path, since its name may have dots.
                for name in {path, path.split(".")[0]}:
                    self._leaves_by_name[name].append(at)
        except UnicodeDecodeError:
            self._stack.close()
            raise pa.ArrowInvalid("the footer has a text that is not UTF-8") from None
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._stack.close()

    def hold(self, vector: DeletionVectorDescriptor | None) -> None:
        """Reserves memory for a deletion vector that is held while rows are decoded.

        `RefusedError` if there is not enough.
        """
        size = 0 if vector is None else vector.memory
        if size >= self._most:
            raise too_large("the deletion vector of the data file", size, max_bytes=self._most)
        self._most -= size

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

    def column_sizes(self, columns: Sequence[str]) -> dict[str, int]:
        """Returns the sizes in bytes of these top-level columns before compression."""
        sizes = dict.fromkeys(columns, 0)
        for group in range(self.row_groups):
            for leaf, chunk in self._chunks(group, columns):
                path = leaf.path
                name = path if path in sizes else path.split(".")[0]
                sizes[name] += chunk.total_uncompressed_size
        return sizes

    def stored_columns(
        self, mode: ColumnMappingMode, *, widens: bool = True, verbatim: bool = False
    ) -> StoredColumns:
        """Returns how to find and convert the columns of this file.

        `CorruptTableError` if columns are found by ID and the file contains no IDs.
        """
        require_column_ids(self.schema, mode)
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
        timestamps are finer than microseconds or if rows do not fit in memory.
        """
        row_count = expected = 0
        exact = self._nanoseconds(columns)
        for group in range(self.row_groups) if groups is None else groups:
            expected += int(self.metadata.row_group(group).num_rows)
            if self._ahead is not None:
                self._ahead.load(self._range(chunk) for _, chunk in self._chunks(group, columns))
            # Dictionaries can divide batches, which would no longer match those of `exact`.
            size, dictionary_columns = self._decoding(group, columns, keeps=exact is None)
            options = {"row_groups": [group], "use_threads": False}
            batches = self._file(dictionary_columns).iter_batches(
                size, columns=list(columns), **options
            )
            finer = None
            if exact is not None:
                file, names = exact
                finer = file.iter_batches(size, columns=names, **options)
            for batch in batches:
                if finer is not None:
                    require_microseconds(batch, next(finer))
                row_count += batch.num_rows
                yield from self._pieces(only(batch, columns))
        if groups is None:
            expected = self.rows
        if row_count != expected:
            raise CorruptTableError(
                f"the data file has {row_count} rows, its footer says {expected}"
            )

    def decode_first(self, columns: Sequence[str], group: int) -> None:
        """Decodes some rows at the beginning of a row group. Reads little more than their pages."""
        size, _ = self._decoding(group, columns, start=True)
        options = {**self._options, "buffer_size": _SAMPLE_BUFFER}
        file = pq.ParquetFile(self._source, **options)
        batches = file.iter_batches(
            min(size, _SAMPLE_ROWS), row_groups=[group], columns=list(columns), use_threads=False
        )
        next(batches, None)

    def _file(self, dictionaries: Sequence[str]) -> pq.ParquetFile:
        """Opens the file, to read these columns as dictionaries."""
        names = tuple(dictionaries)
        if names not in self._files:
            self._files[names] = pq.ParquetFile(
                self._source,
                read_dictionary=names,
                coerce_int96_timestamp_unit="us",
                **self._options,
            )
        return self._files[names]

    def _decoding(
        self, group: int, columns: Sequence[str], *, keeps: bool = False, start: bool = False
    ) -> tuple[int, list[str]]:
        """Returns how many rows of a row group to decode together, and the columns to read as
        dictionaries.

        With `start`, only the first pages are examined. `RefusedError` if not even one row fits.
        """
        rows = int(self.metadata.row_group(group).num_rows)
        leaves = [Leaf(leaf, chunk, rows) for leaf, chunk in self._chunks(group, columns)]
        piece = _SAMPLE_BUFFER if start else self._buffer_size()
        stored = [self._stored_chunk(leaf.chunk, piece) for leaf in leaves]
        sizes = [
            leaf_sizes(leaf, chunk, start=start, max_bytes=self._most)
            for leaf, chunk in zip(leaves, stored, strict=True)
        ]
        dictionary_columns = []
        for at, leaf in enumerate(leaves):
            name = leaf.column.path
            if keeps and self._keeps_dictionary(leaf, sizes[at]):
                dictionary_columns.append(name)
            if (name in dictionary_columns or self._is_dictionary(name)) and not sizes[
                at
            ].encodings:
                sizes[at] = sizes[at].kept()
        likely = row_batches.BATCH_BYTES
        shape = {"rows": rows, "most_rows": ROWS, "likely": likely, "max_bytes": self._most}
        count = rows_together(sizes, **shape)
        expected = sum(column_size.expected for column_size in sizes) / max(rows, 1)
        usual = max(1, min(ROWS, rows, int(likely / max(expected, 1))))
        # As far as is known without decompression, each index of a dictionary could be that of one
        # long entry. One page shows the lengths of the entries; all pages those of the other texts.
        for exact in ("exact_dictionary", "exact"):
            if count < usual and any(column_size.is_rough for column_size in sizes):
                for at, leaf in enumerate(leaves):
                    if sizes[at].is_rough and (exact == "exact" or sizes[at].dictionary):
                        sizes[at] = leaf_sizes(
                            leaf, stored[at], start=start, max_bytes=self._most, **{exact: True}
                        )
                count = rows_together(sizes, **shape)
        if not count:
            subject = f"the row group {group} of the data file"
            raise too_large(subject, one_row(sizes), max_bytes=self._most)
        return count, dictionary_columns

    def _keeps_dictionary(self, leaf: Leaf, sizes: LeafSizes) -> bool:
        """Whether to read a column as a dictionary: because this is asked for, or because its
        dictionary has such long texts that repeating them would take too much memory.
        """
        name, repeats = leaf.column.path, leaf.column.max_repetition_level
        if repeats or leaf.column.max_definition_level > 1 or not self._is_text(name):
            return False
        if sizes.encodings:
            fits = sizes.encodings <= {PLAIN} and sizes.expected <= MOST_DICTIONARY
            return fits and name in self.dictionaries
        long = sizes.entry * min(ROWS, leaf.rows) > row_batches.BATCH_BYTES
        return sizes.dictionary <= MOST_DICTIONARY and (long or name in self.dictionaries)

    def _is_text(self, name: str) -> bool:
        at = self.schema.get_field_index(name)
        return at >= 0 and self.schema.field(at).type in (pa.string(), pa.binary())

    def _is_dictionary(self, name: str) -> bool:
        """Whether Arrow reads a column as a dictionary because its writer did."""
        at = self.schema.get_field_index(name)
        return at >= 0 and bool(pa.types.is_dictionary(self.schema.field(at).type))

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Divides a batch by the size of its rows, after expanding dictionaries that are not kept.

        `RefusedError` for a row that is too large.
        """
        batch = self._with_last_dictionaries(batch)
        while batch.num_rows:
            at_dictionaries = [
                at
                for at, field in enumerate(batch.schema)
                if pa.types.is_dictionary(field.type) and field.name not in self.dictionaries
            ]
            if most_expanded(batch, at_dictionaries) <= row_batches.BATCH_BYTES:
                # Without dictionaries too, and where the texts could be long but are not.
                yield from halves(expand_texts(batch, at_dictionaries))
                return
            size = sum(text_sizes(batch.column(at)) for at in at_dictionaries)
            ends = np.cumsum(size)
            start = 0
            while start < batch.num_rows:
                before = int(ends[start - 1]) if start else 0
                end = max(
                    start + 1, int(np.searchsorted(ends, before + row_batches.BATCH_BYTES, "right"))
                )
                require_row(int(ends[end - 1]) - before if end == start + 1 else 0)
                yield from halves(expand_texts(batch.slice(start, end - start), at_dictionaries))
                start = end
                if any(batch.schema.field(at).name in self.dictionaries for at in at_dictionaries):
                    # The reader has just asked for them.
                    break
            batch = batch.slice(start)

    def _with_last_dictionaries(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replaces dictionaries by equal ones of the previous batch. Arrow copies them each time,
        and a writer holds many batches.
        """
        for at, field in enumerate(batch.schema):
            if pa.types.is_dictionary(field.type):
                column = batch.column(at)
                dictionary = self._last.get(field.name)
                if dictionary is None or not column.dictionary.equals(dictionary):
                    self._last[field.name] = column.dictionary
                    continue
                column = pa.DictionaryArray.from_arrays(column.indices, dictionary, safe=False)
                batch = batch.set_column(at, field, column)
        return batch

    def _nanoseconds(self, columns: Sequence[str]) -> tuple[pq.ParquetFile, list[str]] | None:
        """Opens the INT96 columns again as nanoseconds.

        None if there are no such columns, or if their writer stores only microseconds.
        """
        names = [name for name in columns if name in self.int96]
        if not names or _SPARK in (self.metadata.metadata or {}):
            return None
        file = pq.ParquetFile(self._source, coerce_int96_timestamp_unit="ns", **self._options)
        return file, names

    def _chunks(
        self, group: int, columns: Sequence[str]
    ) -> Iterator[tuple[pq.ColumnSchema, pq.ColumnChunkMetaData]]:
        row_group = self.metadata.row_group(group)
        for at, leaf in self._leaves_of(columns):
            yield leaf, row_group.column(at)

    def _range(self, chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
        """Returns the first and the last position of a column chunk."""
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        # The first Parquet writers stated less than the whole size (PARQUET-816).
        try:
            is_old_writer = _OLD_WRITERS.match(self.metadata.created_by or "") is not None
        except UnicodeDecodeError:
            is_old_writer = False
        end = start + chunk.total_compressed_size
        return start, min(end + _PADDING, max(end, self.size)) if is_old_writer else end

    def _stored_chunk(self, chunk: pq.ColumnChunkMetaData, piece: int) -> PageBytes:
        """Returns the bytes of a column chunk; those that are not in memory are read in pieces."""
        start, end = self._range(chunk)
        if not 0 <= start <= end <= self.size:
            raise pa.ArrowInvalid("a column is outside the file")
        if self._bytes is not None:
            return self._bytes[start:end]
        held = None if self._ahead is None else self._ahead.held(start, end)
        if held is not None:
            return held
        return FilePart(cast(BinaryIO, self._source), start, end, piece=piece)

    def _leaves_of(self, columns: Sequence[str]) -> Iterator[tuple[int, pq.ColumnSchema]]:
        indices = {at for name in columns for at in self._leaves_by_name.get(name, ())}
        for at in sorted(indices):
            yield at, self._leaves[at]

    def _buffer_size(self) -> int:
        columns = max(1, int(self.metadata.num_columns))
        return max(1 << 16, min(4 << 20, GROUP_BYTES // columns))
