"""The footers of data files: physical row counts, and statistics.

Row tracking needs the number of rows in a file, including deleted ones. The Parquet footer contains
it for files whose statistics do not.

Only bounds that are safe are used: those of `bounds_of`, for columns that the file stores with the
type of the table, and of floating-point numbers only if the writer omits bounds because of NaN. The
statistics are those of all physical rows, including deleted ones. Implements "Per-file Statistics"
for rows that are not decoded.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from errno import ENOENT
from itertools import accumulate, groupby
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.actions.paths import ABSOLUTE, below_root, file_locations
from delta_maintenance.protocol.data_files.layout import DataFileLayout, lacking_column
from delta_maintenance.protocol.row_tracking.backfill import RowIdFindings
from delta_maintenance.protocol.schema.data_columns import StoredColumns, is_hybrid
from delta_maintenance.protocol.schema.types import StructType
from delta_maintenance.protocol.statistics.collect import ColumnStatistics
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.table.data.alike_footers import AlikeFooters, FooterColumn, safe_bounds
from delta_maintenance.table.data.copying.proof import bounds_of
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.data.locations import location_of
from delta_maintenance.table.data.parquet.footer_reader import SMALL_FOOTER, StoredFooter
from delta_maintenance.table.data.parquet.footers import end_of_file
from delta_maintenance.table.data.row_batches import reading_error, require_column_ids

PARALLEL_READS = 16
MOST_FOOTER = 256 << 20
"""The maximum memory of a footer in bytes. One large footer is decoded at a time."""
MEMORY = PARALLEL_READS * SMALL_FOOTER + MOST_FOOTER
"""The maximum memory for reading footers in bytes."""


class MissingColumnError(CorruptTableError):
    """A data file lacks a NOT NULL column, so that Delta Spark refuses to read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """The row counts of data files, in the given order of the files."""

    counts: pa.Int64Array
    """Null for files that cannot be read."""
    problems: tuple[str, ...] = ()
    """For each null: the path as in the log, and the problem of the file."""
    errors: tuple[type[DeltaMaintenanceError], ...] = ()
    """For each null: the kind of the problem. `UnsupportedFeatureError` for a file that is not
    damaged, but encrypted, or of another kind that this release does not read; `RefusedError` for
    a file whose types only the missing feature `typeWidening` allows; `MissingColumnError`.
    """
    footers: tuple[Any, ...] = ()
    """What `read_footer` returned for each file; None for files that cannot be read."""


RowCounter = Callable[[pa.StringArray], RowCounts]
"""Counts the rows of data files, whose paths are those of the log."""


def count_rows(
    store: Store,
    paths: pa.StringArray,
    *,
    layout: DataFileLayout | None = None,
    threads: int = PARALLEL_READS,
    read_footer: Callable[[pq.FileMetaData], Any] | None = None,
) -> RowCounts:
    """Reads the footers of data files below the table's root, `threads` at a time.

    With `layout`, the types of the columns are compared too, and NOT NULL columns are looked for.
    `read_footer` is called with each footer that is sound.
    Files that are missing, damaged, encrypted or outside the root appear in `problems`. Errors of
    the store are raised.
    """
    elsewhere = pc.and_(
        pc.match_substring_regex(paths, ABSOLUTE), pc.is_null(below_root(paths, root=store.root))
    )
    locations = pc.if_else(elsewhere, None, file_locations(paths, root=store.root)).to_pylist()
    alone, types = Lock(), None if layout is None else _ColumnTypes(layout)

    def read(location: bytes | None) -> tuple[int | DeltaMaintenanceError, Any]:
        return _rows(store, location, alone, types, read_footer)

    with ThreadPoolExecutor(threads) as pool:
        files = list(pool.map(read, locations))
    counted = [rows for rows, _ in files]
    return RowCounts(
        footers=tuple(footer for _, footer in files),
        counts=pa.array([rows if isinstance(rows, int) else None for rows in counted], pa.int64()),
        problems=tuple(
            f"{path}: {rows.problem}"
            for path, rows in zip(paths.to_pylist(), counted, strict=True)
            if not isinstance(rows, int)
        ),
        errors=tuple(type(rows) for rows in counted if not isinstance(rows, int)),
    )


def with_last_count(findings: RowIdFindings, count: RowCounter) -> RowIdFindings:
    """Counts the rows of the file with the highest row ID if the log does not state their number,
    and the file can be read.
    """
    if findings.last_uncounted is None:
        return findings
    rows = count(pa.array([findings.last_uncounted], pa.string())).counts[0].as_py()
    if rows is None:
        return findings
    return replace(findings, highest=findings.highest + rows - 1, last_uncounted=None)


@contextmanager
def decoded_footer(
    store: Store, location: str, alone: Lock, *, file: str
) -> Iterator[tuple[StoredFooter, pq.FileMetaData]]:
    """Decodes the footer of a data file; a large one while the lock is held.

    Errors of reading and decoding, also those within the block, become errors about `file`:
    `CorruptTableError` and `UnsupportedFeatureError`. Raises `RefusedError` for a footer that takes
    too much memory, and errors of the store.
    """
    try:
        with store.open(location) as source:
            footer = StoredFooter(source)
            with alone if footer.is_large else nullcontext():
                yield footer, footer.decode(max_bytes=MOST_FOOTER, exact_above=MOST_FOOTER)[0]
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, ENOENT):
            # An error of the disk. The errors of pyarrow for a damaged file have no number.
            raise
        raise reading_error(error, file=file) from None


def stated_rows(footer: pq.FileMetaData) -> int:
    """Returns the number of rows; `ArrowInvalid` if the footer contradicts itself."""
    rows = [int(footer.row_group(at).num_rows) for at in range(footer.num_row_groups)]
    if sum(rows) != footer.num_rows or min(rows, default=0) < 0:
        raise pa.ArrowInvalid(
            f"the footer states {footer.num_rows} rows, and its row groups {sum(rows)}"
        )
    return sum(rows)


def _rows(
    store: Store,
    location: bytes | None,
    alone: Lock,
    types: _ColumnTypes | None,
    read_footer: Callable[[pq.FileMetaData], Any] | None,
) -> tuple[int | DeltaMaintenanceError, Any]:
    try:
        path = check_path((location or b"").decode())
    except (UnicodeDecodeError, InvalidRequestError):
        return CorruptTableError("it is not below the table's root"), None
    try:
        with decoded_footer(store, path, alone, file=path) as (_, metadata):
            rows = stated_rows(metadata)
            schema = None if types is None else metadata.schema.to_arrow_schema()
    except RefusedError as error:
        return UnsupportedFeatureError(error.problem, file=path, remedy=error.remedy), None
    except (CorruptTableError, UnsupportedFeatureError) as error:
        return error, None
    try:
        if types is not None and schema is not None:
            types.require(schema)
        return rows, None if read_footer is None else read_footer(metadata)
    except (CorruptTableError, RefusedError) as error:
        return error, None


class _ColumnTypes:
    """Compares the schemas of files with the columns of a table."""

    def __init__(self, layout: DataFileLayout) -> None:
        self._layout = layout
        self._stored = StoredColumns(mode=layout.mode, widens=layout.widens)
        self._last: pa.Schema | None = None

    def require(self, schema: pa.Schema) -> None:
        """Raises the errors of `StoredColumns.require_types`, and `MissingColumnError`."""
        # Files of one writer usually have the same schema.
        if self._last is None or not schema.equals(self._last, check_metadata=True):
            require_column_ids(schema, self._layout.mode)
            self._stored.require_types(self._layout.columns, list(schema))
            required = [column for column in self._layout.required if not column.is_partition]
            lacking = lacking_column(required, list(schema), self._stored)
            if lacking is not None:
                raise MissingColumnError(f"it lacks {lacking.name}, which is NOT NULL")
            self._last = schema


_TOGETHER = 256
"""Footers that are held in memory, each of at most 64 KiB."""
_MOST_FORMS = 8
"""Forms with which footers are compared before they are read alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterStatistics:
    """The statistics that the footer of one file contains."""

    rows: int
    """Physical rows."""
    created_by: str
    bounds: tuple[ColumnStatistics | None, ...]
    """One for each column; None if the column must be decoded."""


class FooterReader:
    """Reads footers of the files of one table. Thread-safe."""

    def __init__(
        self, store: Store, layout: DataFileLayout, leaves: Sequence[StatisticsLeaf]
    ) -> None:
        self._store = store
        self._layout = layout
        self._leaves = leaves
        self._alone = Lock()
        self._forms: list[AlikeFooters] = []
        # Files of one writer usually have the same schema.
        self._last: tuple[pq.ParquetSchema, bool, list[FooterColumn]] | None = None

    def read_all(
        self, files: Sequence[SourceFile], pool: ThreadPoolExecutor
    ) -> Iterator[FooterStatistics | DeltaMaintenanceError]:
        """Yields the statistics of each file, or the error of `read`. Errors of the store are
        raised.

        Footers that are alike are read together, all others each by itself.
        """
        for start in range(0, len(files), _TOGETHER):
            batch = files[start : start + _TOGETHER]
            alike = self._read_part(batch, list(pool.map(self._short_footer, batch)))
            unlike = [file for at, file in enumerate(batch) if at not in alike]
            alone = pool.map(self._read, unlike)
            yield from (alike[at] if at in alike else next(alone) for at in range(len(batch)))

    def _read(self, file: SourceFile) -> FooterStatistics | DeltaMaintenanceError:
        try:
            return self.read(file)
        except (CorruptTableError, RefusedError, UnsupportedFeatureError) as error:
            return error

    def _read_part(
        self, files: Sequence[SourceFile], footers: Sequence[bytes | None]
    ) -> dict[int, FooterStatistics]:
        """Returns the statistics of files whose footers are alike, by the position of the file."""
        statistics_by_position: dict[int, FooterStatistics] = {}
        unread = {at: footer for at, footer in enumerate(footers) if footer is not None}
        forms = iter(list(self._forms))
        for _ in range(_MOST_FORMS):
            if not unread:
                break
            alike = next(forms, None)
            if alike is None:
                alike = self._alike(unread[next(iter(unread))])
                if alike is None:
                    break
                self._forms = [alike, *self._forms[: _MOST_FORMS - 2]]
            matched, rows, bounds = alike.read(list(unread.values()))
            places = [
                at for at, is_matched in zip(unread, matched.tolist(), strict=True) if is_matched
            ]
            for at, count, of_file in zip(places, rows, bounds, strict=True):
                del unread[at]
                # Otherwise the footer contradicts itself or the log, which `read` reports.
                if count >= 0 and files[at].num_records in (None, count):
                    statistics_by_position[at] = FooterStatistics(
                        rows=count, created_by=alike.created_by, bounds=of_file
                    )
        return statistics_by_position

    def _short_footer(self, file: SourceFile) -> bytes | None:
        """Returns a footer that can be read with others, which `read` does not do."""
        try:
            with self._store.open(location_of(self._store, file.path)) as source:
                footer = StoredFooter(source)
                return footer.in_short_tail if footer.file_size == file.size else None
        except (DeltaMaintenanceError, pa.ArrowException, ValueError, OSError):
            # `read` says what is wrong.
            return None

    def _alike(self, footer: bytes) -> AlikeFooters | None:
        """Returns the form of a footer; None if it must be read by itself."""
        tail = end_of_file(footer)
        decoding = StoredFooter(io.BytesIO(tail))
        try:
            metadata, _ = decoding.decode(max_bytes=SMALL_FOOTER)
            decoding.require_readable_columns(metadata.schema)
            hybrid = is_hybrid(metadata.metadata, int96=False)
            columns = self._columns(metadata, hybrid=hybrid)
            return AlikeFooters.like(footer, metadata, columns)
        except (DeltaMaintenanceError, pa.ArrowException, ValueError, OSError):
            return None

    def read(self, file: SourceFile) -> FooterStatistics:
        """Reads the footer of a file.

        Errors name the file: `CorruptTableError` if it is missing, damaged or contradicts the log,
        `RefusedError` for a footer that takes too much memory, `UnsupportedFeatureError` for an
        encrypted file.
        """
        try:
            location = location_of(self._store, file.path)
            with decoded_footer(self._store, location, self._alone, file=file.path) as (
                footer,
                metadata,
            ):
                footer.require_readable_columns(metadata.schema)
                file.require_same(size=footer.file_size, rows=stated_rows(metadata))
                return self.statistics(metadata)
        except (CorruptTableError, RefusedError) as error:
            raise error.locate(file=file.path) from None

    def statistics(self, metadata: pq.FileMetaData, *, nan_aware: bool = True) -> FooterStatistics:
        """Returns the statistics of a footer. Without `nan_aware`, bounds of floating-point numbers
        can be those of the values that are not NaN.

        Raises the errors of the column IDs in the footer.
        """
        key_values, created_by = metadata.metadata, metadata.created_by or ""
        hybrid = is_hybrid(key_values, int96=False)
        groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        column_bounds: list[ColumnStatistics | None] = []
        for column in self._columns(metadata, hybrid=hybrid):
            if not column.is_stored:
                column_bounds.append(ColumnStatistics(nulls=metadata.num_rows, kind=column.kind))
                continue
            total: ColumnStatistics | None = ColumnStatistics(nulls=0, kind=column.kind)
            for group in groups:
                bounds = None
                if column.at is not None and total is not None:
                    chunk = group.column(column.at)
                    bounds = (
                        safe_bounds(column, chunk, created_by)
                        if nan_aware
                        else bounds_of(column.leaf, column.kind, chunk, created_by)
                    )
                total = None if bounds is None or total is None else total.joined(bounds)
            column_bounds.append(total)
        return FooterStatistics(
            rows=metadata.num_rows, created_by=created_by, bounds=tuple(column_bounds)
        )

    def _columns(self, metadata: pq.FileMetaData, *, hybrid: bool) -> list[FooterColumn]:
        known_columns, schema = self._last, metadata.schema
        if (
            known_columns is not None
            and known_columns[1] == hybrid
            and known_columns[0].equals(schema)
        ):
            return known_columns[2]
        stored = StoredColumns(mode=self._layout.mode, hybrid_calendar=hybrid, verbatim=True)
        fields = schema.to_arrow_schema()
        require_column_ids(fields, self._layout.mode)
        top = _Level(
            struct=self._layout.columns, kind=pa.struct(self._layout.schema), fields=list(fields)
        )
        paths = [schema.column(at).path for at in range(len(schema))]
        columns = list(_locate(self._leaves, top, stored, paths))
        self._last = schema, hybrid, columns
        return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """The fields of a struct: in the table, as Arrow reads them, and in a file."""

    struct: StructType
    kind: pa.StructType
    fields: Sequence[pa.Field]
    path: tuple[str, ...] = ()
    """Names in the file."""
    first_leaf: int = 0
    """The number in the file of the first leaf below the struct."""

    @property
    def depth(self) -> int:
        return len(self.path)

    def below(self, struct: StructType, kind: pa.StructType, at: int, first_leaf: int) -> _Level:
        """Returns the struct in the field at an index."""
        field = self.fields[at]
        path = (*self.path, field.name)
        return _Level(
            struct=struct, kind=kind, fields=list(field.type), path=path, first_leaf=first_leaf
        )


def _locate(
    leaves: Iterable[StatisticsLeaf],
    level: _Level,
    stored: StoredColumns,
    parquet_paths: Sequence[str],
) -> Iterator[FooterColumn]:
    """Finds columns of the table in files with a schema, in the order of `leaves`."""
    columns = {item.name: item for item in level.struct.fields}
    numbers = list(accumulate((_leaves(f.type) for f in level.fields), initial=level.first_leaf))
    groups = [(name, list(g)) for name, g in groupby(leaves, lambda leaf: leaf.path[level.depth])]
    located = stored.find((columns[name] for name, _ in groups), level.fields)
    for (name, group), (column, at) in zip(groups, located, strict=True):
        kind = level.kind.field(name).type
        if at is None:
            yield from (FooterColumn(leaf, kind, None, is_stored=False) for leaf in group)
            continue
        field, number = level.fields[at], numbers[at]
        if isinstance(column.type, StructType) and pa.types.is_struct(field.type):
            below = level.below(column.type, kind, at, number)
            yield from _locate(group, below, stored, parquet_paths)
            continue
        early = stored.hybrid_calendar and (pa.types.is_date(kind) or pa.types.is_timestamp(kind))
        usable = (
            # Otherwise a reader reports the contradiction.
            _plain(field.type) == kind
            and not early
            and not pa.types.is_nested(kind)
            and number < len(parquet_paths)
            and parquet_paths[number] == ".".join((*level.path, field.name))
        )
        for leaf in group:
            yield FooterColumn(leaf, kind, number if usable else None, is_stored=True)


def _leaves(kind: pa.DataType) -> int:
    """Returns the number of leaves of a type in Parquet."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(at).type) for at in range(kind.num_fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values, whatever the layout that the writer had in memory."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.string() if texts else kind
