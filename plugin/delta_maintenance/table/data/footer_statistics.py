"""The statistics of data files, read from their footers.

Only bounds that are safe are used: those of `bounds_of`, for columns that the file stores with the
type of the table, and of floating-point numbers only if the writer omits bounds because of NaN. The
statistics are those of all physical rows, including deleted ones. Implements "Per-file Statistics"
for rows that are not decoded.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.parquet.footer_reader import SMALL_FOOTER, StoredFooter
from delta_maintenance.parquet.footers import end_of_file
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.schema.data_columns import StoredColumns, is_hybrid
from delta_maintenance.protocol.schema.types import StructType
from delta_maintenance.protocol.statistics.collect import ColumnStatistics
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.alike_footers import AlikeFooters, FooterColumn, safe_bounds
from delta_maintenance.table.data.copying.proof import bounds_of
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.data.locations import location_of
from delta_maintenance.table.data.row_batches import require_column_ids
from delta_maintenance.table.data.row_counts import decoded_footer, stated_rows

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
            metadata, _ = decoding.decoded(max_bytes=SMALL_FOOTER)
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
