"""Data files whose row groups can be copied into a new data file without decoding them.

This requires that a new data file would have the same columns, including the names of list elements
and the field IDs, and that this module knows all positions in the footer. Only the hidden columns
of row tracking may be missing; they are added. All other metadata is kept as stored. Implements
"File Metadata" of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.table.compact_protocol import Struct
from delta_maintenance.table.data.copying.chunks import (
    BLOOM_FILTER,
    BLOOM_FILTER_SIZE,
    COLUMN_INDEX,
    COLUMN_INDEX_SIZE,
    COLUMNS,
    DATA_PAGE,
    DICTIONARY_PAGE,
    FILE_PATH,
    INDEX_PAGE,
    MAGIC,
    MOST_CHUNK,
    NUM_VALUES,
    OFFSET_INDEX,
    OFFSET_INDEX_SIZE,
    ROW_GROUPS,
    Chunk,
    footer_of,
)
from delta_maintenance.table.data.copying.frames import (
    TRACKING_COLUMNS,
    FileFrame,
    OwnFile,
    frame_of,
)
from delta_maintenance.table.data.data_file_writer import DataFileSpec, leaf_paths
from delta_maintenance.table.data.parquet_input import ParquetInput
from delta_maintenance.table.data.read_back import schema_difference

_MOST_OFFSETS = 1 << 20
"""The maximum size of an offset index in bytes, which is parsed to objects."""
_MOST_FOOTER = 4 << 20
"""The maximum size of a footer in bytes, which is parsed to objects."""
_KNOWN = {"file": 7, "group": 7, "chunk": 7, "metadata": 17}
"""The highest known field of each struct; an unknown field could contain a position."""


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
    """The footer as parsed by Arrow."""
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
        own: OwnFile,
        *,
        size: int,
        least: int,
        budget: CopyBudget,
    ) -> CopySource | None:
        """Reads the footer of a file. None if its rows must be decoded.

        `size` is the size of the file in bytes according to the log, and `least` is the minimum
        average size of a row group in bytes. A damaged file raises errors of Arrow,
        `MalformedThriftError` or `OSError`.
        """
        layout = spec.layout
        file = opened()
        with ParquetInput(file) as parquet:
            count = parquet.row_groups * parquet.metadata.num_columns
            if parquet.size != size or not 0 < count <= budget.chunks:
                return None
            if parquet.metadata.serialized_size > _MOST_FOOTER:
                return None
            complete = _has_layout(parquet, layout)
            if not complete and not (layout.tracks_rows and _has_layout(parquet, layout.untracked)):
                return None
            tree, end = footer_of(file)
            groups = tuple(tree.structs(ROW_GROUPS))
            chunks = [Chunk.of(chunk) for group in groups for chunk in group.structs(COLUMNS)]
            sizes = sum(chunk.size for chunk in chunks)
            if sizes < least * len(groups) or not _is_known(tree, groups):
                return None
            if not all(_is_movable(chunk, end) for chunk in chunks):
                return None
            index_bytes = sum(size for chunk in chunks for _, size, _ in _indexes(chunk))
            # Otherwise parts overlap: a small file could describe any amount of data.
            if sizes + index_bytes > end or index_bytes > budget.index_bytes:
                return None
            if not _is_consistent(parquet, groups):
                return None
            frame = frame_of(tree, parquet, own, complete=complete)
            tracked = _tracked(parquet.metadata, layout, complete=complete)
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


def _tracked(
    metadata: pq.FileMetaData, layout: DataFileLayout, *, complete: bool
) -> tuple[bool, ...]:
    if not layout.tracks_rows:
        return (True,) * int(metadata.num_row_groups)
    if not complete:
        return (False,) * int(metadata.num_row_groups)
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    last = range(1, TRACKING_COLUMNS + 1)
    return tuple(
        all(_has_no_nulls(group.column(group.num_columns - at)) for at in last) for group in groups
    )


def _has_no_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    found = chunk.statistics
    if "DELTA_BINARY_PACKED" in chunk.encodings:
        return False  # earlier releases used it, and Spark reads it wrongly (decision 0034)
    return found is not None and bool(found.has_null_count) and found.null_count == 0


def _has_layout(parquet: ParquetInput, layout: DataFileLayout) -> bool:
    """Whether a new data file would have the same columns with the same types.

    Timestamps may be stored as INT96. Such files share a new file only with those of the same
    writer, because it tells some readers whether a time zone was applied.
    """
    wanted = layout.schema
    if schema_difference(parquet.schema_in_utc, wanted) is not None:
        return False
    if parquet.leaf_paths != leaf_paths(wanted, wanted.names):
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
        for chunk in group.structs(COLUMNS):
            if max(chunk.fields) > _KNOWN["chunk"] or chunk.get(FILE_PATH) is not None:
                return False
    return True


def _is_movable(chunk: Chunk, end: int) -> bool:
    """Whether the chunk fits in memory, and all of its parts end before the position `end`."""
    metadata = chunk.metadata
    if max(metadata.fields) > _KNOWN["metadata"] or metadata.get(INDEX_PAGE) is not None:
        return False
    ranges = [(chunk.start, chunk.size, MOST_CHUNK), *_indexes(chunk)]
    return all(
        len(MAGIC) <= start and 0 < size <= most and start + size <= end
        for start, size, most in ranges
    )


def _indexes(chunk: Chunk) -> Iterator[tuple[int, int, int]]:
    """Yields position, size and maximum size of each page index and bloom filter of a chunk."""
    for most, found in (
        (_MOST_OFFSETS, chunk.range_of(OFFSET_INDEX, OFFSET_INDEX_SIZE, chunk.tree)),
        (MOST_CHUNK, chunk.range_of(COLUMN_INDEX, COLUMN_INDEX_SIZE, chunk.tree)),
        (MOST_CHUNK, chunk.range_of(BLOOM_FILTER, BLOOM_FILTER_SIZE, chunk.metadata)),
    ):
        if found is not None:
            yield (*found, most)


def _is_consistent(parquet: ParquetInput, groups: Sequence[Struct]) -> bool:
    """Whether the numbers of rows and values agree, and Arrow finds the same positions.

    A wrong number would be copied with the rest of the footer.
    """
    found = [parquet.metadata.row_group(at) for at in range(parquet.row_groups)]
    rows = [group.num_rows for group in found]
    if len(groups) != len(rows) or min(rows) < 0 or sum(rows) != parquet.rows:
        return False
    schema = parquet.parquet_schema
    repeats = [schema.column(at).max_repetition_level > 0 for at in range(len(schema))]
    return all(
        _agrees(Chunk.of(tree), group.column(at), group.num_rows, repeats=repeats[at])
        for group, trees in zip(found, groups, strict=True)
        for at, tree in enumerate(trees.structs(COLUMNS))
    )


def _agrees(chunk: Chunk, found: pq.ColumnChunkMetaData, rows: int, *, repeats: bool) -> bool:
    values, data = chunk.metadata.number(NUM_VALUES), chunk.metadata.number(DATA_PAGE) or 0
    seen = (
        found.num_values,
        found.total_compressed_size,
        found.data_page_offset,
        found.dictionary_page_offset or 0,
    )
    return (
        seen == (values, chunk.size, data, chunk.metadata.number(DICTIONARY_PAGE) or 0)
        and (found.num_values >= rows if repeats else found.num_values == rows)
        and chunk.start <= data < chunk.start + chunk.size
    )
