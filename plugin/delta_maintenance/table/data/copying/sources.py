"""Data files whose row groups can be copied into a new data file without decoding them.

This requires that a new data file would have the same columns, including the names of list elements
and the field IDs, and that this module knows all positions in the footer. Only the hidden columns
of row tracking may be missing; they are added. Partition columns are left out. All other metadata
is kept as stored. The frame is the part of a footer that all row groups of a file share. Implements
"File Metadata" of the Parquet format.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance import __version__
from delta_maintenance.errors import DeltaMaintenanceError, StorageError
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.table.data.data_file_writer import DataFileSpec, leaf_names, leaf_paths
from delta_maintenance.table.data.parquet import footers as fields
from delta_maintenance.table.data.parquet.footer_reader import StoredFooter
from delta_maintenance.table.data.parquet.footers import MAGIC, Chunk, end_of_file
from delta_maintenance.table.data.parquet.pages import MalformedPageError
from delta_maintenance.table.data.parquet.row_groups import NUM_CHILDREN, without_columns
from delta_maintenance.table.data.parquet.thrift import (
    BINARY,
    I32,
    STRUCT,
    ListValue,
    MalformedThriftError,
    Struct,
    Value,
    struct_bytes,
)
from delta_maintenance.table.data.parquet_input import ParquetInput
from delta_maintenance.table.data.read_back import schema_difference

MOST_CHUNK = 64 << 20
"""The maximum size of a column chunk in bytes; one chunk is held in memory."""
_MOST_OFFSETS = 1 << 20
"""The maximum size of an offset index in bytes, which is parsed to objects."""
_MOST_FOOTER = 4 << 20
"""The maximum size of a footer in bytes, which is parsed to objects."""
_KNOWN = {"file": 7, "group": 7, "chunk": 7, "metadata": 17}
"""The highest known field of each struct; an unknown field could contain a position."""

TRACKING_COLUMNS = 2
"""The number of hidden columns of row tracking, which are the last ones of a file."""
_SPARK_VERSION = b"org.apache.spark.version"
_SPARK, _ARROW_SCHEMA = b"org.apache.spark.", b"ARROW:schema"
_TODAYS_CALENDAR = b"3.1.0"
"""The first version of Spark whose dates and timestamps are all proleptic Gregorian."""
_SOUND_WRITERS = re.compile(
    rb"parquet-mr version (1\.(1\d|[2-9]\d)|[2-9])|parquet-cpp-arrow version ([4-9]|\d\d)|"
    rb"(parquet|delta)-rs version"
)
"""Writers whose statistics all readers trust."""
_OURS = f"delta-maintenance version {__version__} (build copied)".encode()


class NotCopiedError(Exception):
    """The rows of a source must be decoded. If a new file was created, no version refers to it."""


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


@dataclass(frozen=True, slots=True)
class CopyBudget:
    """How much metadata of copied row groups a bin may still hold in memory."""

    chunks: int
    """Column chunks, of which each takes some 15 KiB."""
    index_bytes: int
    """The total size of page indexes and bloom filters in bytes."""

    def without(self, source: CopySource) -> CopyBudget:
        """Returns what remains after the metadata of a source."""
        return CopyBudget(self.chunks - source.chunks, self.index_bytes - source.index_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySource:
    """A data file whose row groups can be copied. The file is open only while it is read."""

    frame: FileFrame
    groups: tuple[Struct, ...]
    metadata: pq.FileMetaData
    """The footer as parsed by Arrow, without partition columns."""
    starts: tuple[int, ...]
    """The position of the first row of each row group, counted from 0."""
    opened: Callable[[], BinaryIO]
    """Opens the file."""
    tracked: tuple[bool, ...]
    """For each row group, whether its chunks contain the row ID and the row commit version of every
    row. Always true for a table without row tracking.
    """
    index_bytes: int
    """The total size of page indexes and bloom filters in bytes."""

    @classmethod
    def of(
        cls,
        opened: Callable[[], BinaryIO],
        spec: DataFileSpec,
        own_file: OwnFile,
        *,
        size: int,
        min_bytes: int,
        budget: CopyBudget,
    ) -> CopySource | None:
        """Reads the footer of a file. None if its rows must be decoded.

        `size` is the size of the file in bytes according to the log, and `min_bytes` is the minimum
        average size of a row group in bytes. A damaged file raises errors of Arrow,
        `MalformedThriftError` or `OSError`.
        """
        layout = spec.layout
        partitions = {item.name.encode() for item in layout.partition_columns.fields}
        file = opened()
        with ExitStack() as stack:
            parquet = stack.enter_context(ParquetInput(file))
            count = parquet.row_groups * parquet.metadata.num_columns
            if parquet.size != size or not 0 < count <= budget.chunks:
                return None
            if parquet.metadata.serialized_size > _MOST_FOOTER:
                return None
            footer = StoredFooter(file)
            tree, end = footer.tree, footer.start
            narrower = without_columns(tree, partitions)
            if narrower is not None:
                tree, data = narrower, MAGIC + end_of_file(struct_bytes(narrower))
                parquet = stack.enter_context(ParquetInput(data))
            complete = _has_layout(parquet, layout)
            if not complete and not (layout.tracks_rows and _has_layout(parquet, layout.untracked)):
                return None
            if not _has_required_values(parquet.metadata, layout):
                return None
            groups = tuple(tree.structs(fields.ROW_GROUPS))
            chunks = [
                Chunk.of(chunk) for group in groups for chunk in group.structs(fields.COLUMNS)
            ]
            sizes = sum(chunk.size for chunk in chunks)
            if sizes < min_bytes * len(groups) or not _is_known(tree, groups):
                return None
            if not all(_is_movable(chunk, end) for chunk in chunks):
                return None
            index_bytes = sum(size for chunk in chunks for _, size, _ in _indexes(chunk))
            # Otherwise parts overlap: a small file could describe any amount of data.
            if sizes + index_bytes > end or index_bytes > budget.index_bytes:
                return None
            if not _is_consistent(parquet, groups):
                return None
            frame = frame_of(tree, parquet, own_file, complete=complete)
            tracked = _tracked_groups(parquet.metadata, layout, complete=complete)
            if frame is None:
                return None
            return cls(
                frame=frame,
                groups=groups,
                metadata=parquet.metadata,
                starts=tuple(parquet.group_starts),
                opened=opened,
                tracked=tracked,
                index_bytes=index_bytes,
            )

    @property
    def chunks(self) -> int:
        """The number of column chunks."""
        return len(self.groups) * int(self.metadata.num_columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFrame:
    """The properties that all row groups of a file share."""

    version: int
    schema: Value
    column_orders: Value
    is_own: bool
    """Whether readers see the columns of a file that `DataFileWriter` encodes."""
    int96: bool
    """Whether timestamps have the physical type INT96."""
    codecs: frozenset[str]
    """Names as in Arrow, such as `SNAPPY`."""
    created_by: bytes
    key_values: Mapping[bytes, bytes | None]

    def join(self, frame: FileFrame) -> FileFrame | None:
        """Returns the frame of a file with the row groups of both; None if they do not fit."""
        is_same = (self.schema, self.column_orders) == (frame.schema, frame.column_orders)
        if self.codecs != frame.codecs or not (is_same or (self.is_own and frame.is_own)):
            return None
        created_by = self.created_by
        if created_by != frame.created_by:
            writers = (created_by, frame.created_by)
            # Spark and Hive can be told to convert INT96 of all writers but parquet-mr.
            if self.int96 or not all(
                _SOUND_WRITERS.match(name) or name == _OURS for name in writers
            ):
                return None
            created_by = _OURS
        ours, theirs = self.key_values, frame.key_values
        if (_SPARK_VERSION in ours) != (_SPARK_VERSION in theirs):
            # Spark 3 rebases early dates of only one of the two files.
            return None
        key_values = {key: value for key, value in ours.items() if theirs.get(key) == value}
        if _SPARK_VERSION in ours:
            key_values.setdefault(_SPARK_VERSION, _TODAYS_CALENDAR)
        return replace(
            self,
            version=max(self.version, frame.version),
            created_by=created_by,
            key_values=key_values,
        )

    def with_encoded(self, own_frame: FileFrame, *, rows: bool) -> FileFrame | None:
        """Returns the frame of a file to which columns of row tracking are added, or also `rows`.

        `own_frame` is the frame of a file of `DataFileWriter`. None if they do not fit.
        """
        if rows and not self.is_own:
            return None
        calendar = {_SPARK_VERSION: _TODAYS_CALENDAR} if self.names_calendar else {}
        added = replace(
            own_frame,
            schema=self.schema,
            column_orders=self.column_orders,
            codecs=self.codecs,
            key_values=calendar,
        )
        return self.join(added)

    @property
    def names_calendar(self) -> bool:
        """Whether the footer says that early dates are in the proleptic Gregorian calendar."""
        return _SPARK_VERSION in self.key_values


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFile:
    """The footer of a file that `DataFileWriter` encodes, for comparison with those of sources."""

    frame: FileFrame
    schema: pq.ParquetSchema
    untracked: pq.ParquetSchema
    """The schema without the hidden columns of row tracking."""

    @classmethod
    def of(cls, tracked: bytes, untracked: bytes) -> OwnFile:
        """Parses two files without rows: with the columns of row tracking, and without them."""
        with ParquetInput(tracked) as parquet, ParquetInput(untracked) as less:
            frame = _frame(StoredFooter(io.BytesIO(tracked)).tree, parquet, is_own=True)
            return cls(frame=frame, schema=parquet.parquet_schema, untracked=less.parquet_schema)


def frame_of(
    tree: Struct, parquet: ParquetInput, own_file: OwnFile, *, complete: bool
) -> FileFrame | None:
    """Returns the frame of a source, with the columns of row tracking. None if it has no orders of
    columns to which those of the added ones could be appended.
    """
    count = parquet.metadata.num_columns
    ours, theirs = own_file.frame.column_orders, tree.get(fields.COLUMN_ORDERS)
    expected = own_file.schema if complete else own_file.untracked
    is_own = _first(ours, count) == theirs and bool(parquet.parquet_schema.equals(expected))
    frame = _frame(tree, parquet, is_own=is_own)
    if complete:
        return frame
    if is_own:
        return replace(frame, schema=own_file.frame.schema, column_orders=ours)
    if not (isinstance(theirs, ListValue) and isinstance(ours, ListValue)):
        return None
    schema = tree.structs(fields.SCHEMA)
    added = _elements(own_file.frame.schema)[-TRACKING_COLUMNS:]
    root = schema[0].copy()
    root.put(NUM_CHILDREN, I32, (root.number(NUM_CHILDREN) or 0) + len(added))
    orders = [*theirs.values, *ours.values[-len(added) :]]
    return replace(
        frame,
        schema=ListValue(STRUCT, [root, *schema[1:], *added]),
        column_orders=ListValue(theirs.element, orders),
    )


def key_value_list(pairs: Mapping[bytes, bytes | None]) -> Sequence[Struct]:
    """Returns key-value metadata as structs."""
    entries = []
    for key, value in pairs.items():
        entry = Struct()
        entry.put(fields.KEY, BINARY, key)
        if value is not None:
            entry.put(fields.KEY_VALUE, BINARY, value)
        entries.append(entry)
    return entries


def _tracked_groups(
    metadata: pq.FileMetaData, layout: DataFileLayout, *, complete: bool
) -> tuple[bool, ...]:
    if not layout.tracks_rows:
        return (True,) * int(metadata.num_row_groups)
    if not complete:
        return (False,) * int(metadata.num_row_groups)
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    offsets = range(1, TRACKING_COLUMNS + 1)
    return tuple(
        all(_has_no_nulls(group.column(group.num_columns - at)) for at in offsets)
        for group in groups
    )


def _has_required_values(metadata: pq.FileMetaData, layout: DataFileLayout) -> bool:
    """Whether the footer proves that no NOT NULL column contains a null.

    The file has the columns of the layout. A struct is not null where one of its leaves is not.
    """
    schema = layout.untracked.schema
    leaves = leaf_names(schema, schema.names)
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    return all(
        any(
            all(_states_no_nulls(group.column(at)) for group in groups)
            for at, leaf in enumerate(leaves)
            if leaf[: len(column.path)] == column.path
        )
        for column in layout.required
        if not column.is_partition
    )


def _has_no_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    # Spark reads this encoding of row IDs wrongly (decision 0034).
    return "DELTA_BINARY_PACKED" not in chunk.encodings and _states_no_nulls(chunk)


def _states_no_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    return statistics is not None and bool(statistics.has_null_count) and statistics.null_count == 0


def _has_layout(parquet: ParquetInput, layout: DataFileLayout) -> bool:
    """Whether a new data file would have the same columns with the same types.

    Timestamps may be stored as INT96. Such files share a new file only with those of the same
    writer, because it tells some readers whether a time zone was applied.
    """
    schema = layout.schema
    if schema_difference(parquet.schema_in_utc, schema) is not None:
        return False
    if parquet.leaf_paths != leaf_paths(schema, schema.names):
        return False
    # Delta Spark declares elements and values of maps as required if they come from an expression
    # that has no nulls. All sources of a new file have the same schema, so it can keep that.
    if not all(field.nullable for field in parquet.schema):
        return False
    if any(pa.types.is_dictionary(field.type) for field in parquet.schema):
        return False
    return not parquet.stored_columns(layout.mode, verbatim=True).hybrid_calendar


def _is_known(tree: Struct, groups: Sequence[Struct]) -> bool:
    if max(tree.fields) > _KNOWN["file"]:
        return False
    for group in groups:
        if max(group.fields) > _KNOWN["group"]:
            return False
        for chunk in group.structs(fields.COLUMNS):
            if max(chunk.fields) > _KNOWN["chunk"] or chunk.get(fields.FILE_PATH) is not None:
                return False
    return True


def _is_movable(chunk: Chunk, end: int) -> bool:
    """Whether the chunk fits in memory, and all of its parts end before the position `end`."""
    metadata = chunk.metadata
    if max(metadata.fields) > _KNOWN["metadata"] or metadata.get(fields.INDEX_PAGE) is not None:
        return False
    ranges = [(chunk.start, chunk.size, MOST_CHUNK), *_indexes(chunk)]
    return all(
        len(MAGIC) <= start and 0 < size <= limit and start + size <= end
        for start, size, limit in ranges
    )


def _indexes(chunk: Chunk) -> Iterator[tuple[int, int, int]]:
    """Yields position, size and maximum size of each page index and bloom filter of a chunk."""
    for limit, index_range in (
        (_MOST_OFFSETS, chunk.range_of(fields.OFFSET_INDEX, fields.OFFSET_INDEX_SIZE, chunk.tree)),
        (MOST_CHUNK, chunk.range_of(fields.COLUMN_INDEX, fields.COLUMN_INDEX_SIZE, chunk.tree)),
        (MOST_CHUNK, chunk.range_of(fields.BLOOM_FILTER, fields.BLOOM_FILTER_SIZE, chunk.metadata)),
    ):
        if index_range is not None:
            yield (*index_range, limit)


def _is_consistent(parquet: ParquetInput, groups: Sequence[Struct]) -> bool:
    """Whether the numbers of rows and values agree, and Arrow finds the same positions.

    A wrong number would be copied with the rest of the footer.
    """
    row_groups = [parquet.metadata.row_group(at) for at in range(parquet.row_groups)]
    rows = [group.num_rows for group in row_groups]
    if len(groups) != len(rows) or min(rows) < 0 or sum(rows) != parquet.rows:
        return False
    schema = parquet.parquet_schema
    repeats = [schema.column(at).max_repetition_level > 0 for at in range(len(schema))]
    return all(
        _agrees(Chunk.of(tree), group.column(at), group.num_rows, repeats=repeats[at])
        for group, trees in zip(row_groups, groups, strict=True)
        for at, tree in enumerate(trees.structs(fields.COLUMNS))
    )


def _agrees(
    chunk: Chunk, column_chunk: pq.ColumnChunkMetaData, rows: int, *, repeats: bool
) -> bool:
    number = chunk.metadata.number
    values, data = number(fields.NUM_VALUES), number(fields.DATA_PAGE) or 0
    shape = (
        column_chunk.num_values,
        column_chunk.total_compressed_size,
        column_chunk.data_page_offset,
        column_chunk.dictionary_page_offset or 0,
    )
    return (
        shape == (values, chunk.size, data, number(fields.DICTIONARY_PAGE) or 0)
        and (column_chunk.num_values >= rows if repeats else column_chunk.num_values == rows)
        and chunk.start <= data < chunk.start + chunk.size
    )


def _frame(tree: Struct, parquet: ParquetInput, *, is_own: bool) -> FileFrame:
    return FileFrame(
        version=tree.number(fields.VERSION) or 1,
        schema=tree.get(fields.SCHEMA),
        column_orders=tree.get(fields.COLUMN_ORDERS),
        is_own=is_own,
        int96=bool(parquet.int96),
        codecs=_codecs(parquet.metadata),
        created_by=_text(tree.get(fields.CREATED_BY)),
        key_values=_key_values(tree),
    )


def _first(orders: Value, count: int) -> Value:
    if not isinstance(orders, ListValue):
        return orders
    return ListValue(orders.element, orders.values[:count])


def _elements(schema: Value) -> list[Value]:
    return schema.values if isinstance(schema, ListValue) else []


def _codecs(metadata: pq.FileMetaData) -> frozenset[str]:
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    return frozenset(
        group.column(at).compression for group in groups for at in range(group.num_columns)
    )


def _key_values(tree: Struct) -> Mapping[bytes, bytes | None]:
    """Returns the key-value metadata that readers of the new file may need."""
    values_by_key: dict[bytes, bytes | None] = {}
    for entry in tree.structs(fields.KEY_VALUES):
        key, value = _text(entry.get(fields.KEY)), entry.get(fields.KEY_VALUE)
        if key == _ARROW_SCHEMA or key.startswith(_SPARK):
            values_by_key[key] = value if isinstance(value, bytes) else None
    return values_by_key


def _text(value: Value) -> bytes:
    return value if isinstance(value, bytes) else b""
