"""Reads data files for a rewrite: all rows, with everything that the new files must preserve.

Rows have the layout of new data files: the current columns with their physical names and current
types, null for missing columns, then partition columns and row IDs if data files contain them.
Deleted rows and their positions are included, so that the writer and the proof can skip deleted
rows independently of each other. Implements the requirements for readers of "Column Mapping", "Type
Widening", "Deletion Vectors" and "Row Tracking".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    StorageError,
)
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.data_files.layout import DataFileLayout, RequiredColumn
from delta_maintenance.protocol.schema.data_columns import StoredColumns
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.statistics.collect import ColumnStatistics, StatisticsCollector
from delta_maintenance.protocol.statistics.columns import StatisticsColumns, StatisticsLeaf
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.data_file_writer import filterable_paths
from delta_maintenance.table.data.deleted_rows import DeletedRows, deleted_between, kept_rows
from delta_maintenance.table.data.locations import location_of
from delta_maintenance.table.data.parquet.decoded_sizes import READING_BYTES
from delta_maintenance.table.data.parquet_input import WHOLE_FILE, ParquetInput
from delta_maintenance.table.data.row_batches import reading_error

_ROW_IDS = 1 << 63
"""Row IDs are smaller than this, because they are signed 64-bit integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A live file as described by its add. Can be sent to executors."""

    path: str
    """As in the log."""
    partition_values: tuple[tuple[str, str | None], ...]
    """As in the log, by physical name, sorted by name."""
    size: int
    deletion_vector: DeletionVectorDescriptor | None = None
    num_records: int | None = None
    """Physical rows according to the statistics; None if these do not contain the number."""
    base_row_id: int | None = None
    default_row_commit_version: int | None = None

    @classmethod
    def of_location(cls, row: Mapping[str, Any]) -> Self:
        """Returns a file whose stored columns are to be read, at its `location`. The number of its
        rows is not compared.
        """
        vector = row["deletionVector"]
        return cls(
            path=row["location"],
            partition_values=(),
            size=row["size"] or 0,
            deletion_vector=None if vector is None else DeletionVectorDescriptor.from_json(vector),
            base_row_id=row["baseRowId"],
            default_row_commit_version=row["defaultRowCommitVersion"],
        )

    @property
    def key(self) -> tuple[str, str | None]:
        """The path and the unique ID of the deletion vector, which identify the file."""
        vector = self.deletion_vector
        return self.path, None if vector is None else vector.unique_id

    def require_same(self, *, size: int, rows: int) -> None:
        """Raises `CorruptTableError` if the file has another size or another number of rows."""
        if size != self.size:
            raise CorruptTableError(
                f"the data file has {size} bytes where the log says {self.size}",
                remedy="restore the file, because it is not the one that was committed",
            )
        if self.num_records is not None and self.num_records != rows:
            raise CorruptTableError(
                f"the data file has {rows} rows where the log says {self.num_records}",
                remedy="restore the file, or see with fsck --deep what else is wrong",
            )

    @property
    def row_ids(self) -> tuple[int | None, int | None]:
        """The base row ID and the default row commit version."""
        return self.base_row_id, self.default_row_commit_version

    @property
    def deleted_rows(self) -> int:
        """The number of deleted rows according to the log."""
        return 0 if self.deletion_vector is None else self.deletion_vector.cardinality


@dataclass(frozen=True, slots=True)
class FileRows:
    """Some rows of one file, including deleted ones."""

    batch: pa.RecordBatch
    """Columns as in `DataFileLayout.schema`; string columns may be dictionaries."""
    first: int
    """The physical position of the first row."""
    deleted: BitMap64
    """The positions of all deleted rows of the file."""

    def live(self) -> pa.RecordBatch:
        """Returns the rows that are not deleted."""
        is_live = kept_rows(self.deleted, self.first, self.batch.num_rows)
        return self.batch if is_live is None else self.batch.filter(is_live)

    def gone(self) -> npt.NDArray[np.int64]:
        """Returns the indices of the deleted rows in the batch."""
        return deleted_between(self.deleted, self.first, self.batch.num_rows)


class LostBloomFilters(Exception):
    """New files would lack bloom filters of a source."""


class DataFileReader:
    """Reads data files. Thread-safe."""

    def __init__(
        self,
        store: Store,
        layout: DataFileLayout,
        *,
        reading_bytes: int = READING_BYTES,
        bloom_filters: frozenset[str] | None = None,
    ) -> None:
        """`reading_bytes` is as in `ParquetInput`. With `bloom_filters`, the paths of the leaves
        that have one in new files, `read` raises `LostBloomFilters` for a file that has others.
        """
        self._store = store
        self._reading_bytes = reading_bytes
        self._layout = layout
        self._bloom_filters = bloom_filters
        self._schema = layout.schema
        self._deleted = DeletedRows(store)
        self._stored: _StoredLayout | None = None
        self.dictionaries: Sequence[str] = ()
        """Physical names of the string columns to read as Arrow dictionaries. May be changed while
        a file is read.
        """

    def read(
        self,
        file: SourceFile,
        *,
        data: bytes | None = None,
        groups: Sequence[int] | None = None,
        holding: BitMap64 | None = None,
    ) -> Iterator[FileRows]:
        """Yields all rows of a file, or those of some row groups, in their physical order.

        `groups` are the numbers of the row groups to read; with `holding`, those with a row at one
        of these positions are read. `data` is the content of the file, if it was read before.
        Errors name the file: `CorruptTableError` if it is missing, damaged or contradicts the log,
        `RefusedError` and `UnsupportedFeatureError` if its values cannot be preserved exactly, and
        `StorageError`.
        """
        try:
            yield from self._rows(file, data, groups, holding)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise reading_error(error, file=file.path) from None
        except StorageError as error:
            raise error.locate(file=file.path) from error.__cause__
        except DeltaMaintenanceError as error:
            raise error.locate(file=file.path) from None

    def fetch(self, file: SourceFile) -> bytes | None:
        """Reads a small file in one request, for reading ahead. None for a large file.

        Also None after an error, which `read` then raises.
        """
        if file.size > WHOLE_FILE:
            return None
        try:
            # The size in the log may be too small.
            data = self._store.read_head(location_of(self._store, file.path), WHOLE_FILE + 1)
        except (DeltaMaintenanceError, OSError):
            return None
        return data if len(data) <= WHOLE_FILE else None

    def _rows(
        self,
        file: SourceFile,
        data: bytes | None,
        groups: Sequence[int] | None,
        holding: BitMap64 | None,
    ) -> Iterator[FileRows]:
        data = data if data is not None else self.fetch(file)
        source = data if data is not None else self._store.open(location_of(self._store, file.path))
        with ParquetInput(
            source, dictionaries=self.dictionaries, reading_bytes=self._reading_bytes
        ) as parquet:
            rows = parquet.rows
            file.require_same(size=parquet.size, rows=rows)
            if self._bloom_filters is not None:
                require_bloom_filters(parquet.metadata, self._schema, names=self._bloom_filters)
            parquet.hold(file.deletion_vector)
            deleted = self._deleted.of(file.deletion_vector, rows)
            stored = self._stored_layout(parquet)
            columns = _FileColumns(self._layout, stored, file)
            starts = parquet.group_starts
            if holding is not None:
                ends = [*starts[1:], rows]
                held = map(holding.range_cardinality, starts, ends)
                groups = [at for at, count in enumerate(held) if count]
            group_starts = [(0, None)] if groups is None else [(starts[at], (at,)) for at in groups]
            for row, group in group_starts:
                for batch in parquet.batches(stored.names, group):
                    arrays = columns.convert(batch, row)
                    file_rows = FileRows(self._batch(arrays), row, deleted)
                    self._require_values(file_rows)
                    yield file_rows
                    row += batch.num_rows
                    parquet.dictionaries = self.dictionaries

    def _require_values(self, rows: FileRows) -> None:
        """Refuses rows with a null in a NOT NULL column, unless they are deleted."""
        for column in self._layout.required:
            if column.is_partition:
                continue
            nulls = column.nulls_in(rows.batch)
            if nulls is not None:
                is_live = kept_rows(rows.deleted, rows.first, rows.batch.num_rows)
                if pc.any(nulls if is_live is None else pc.and_(nulls, is_live)).as_py():
                    raise null_in_required(column)

    def bloom_filters(self, file: SourceFile) -> frozenset[str]:
        """Returns the paths of the leaves of new files that have a bloom filter in a file.

        Empty if the file cannot be opened, which `read` reports.
        """
        try:
            with ParquetInput(
                self._store.open(location_of(self._store, file.path)),
                reading_bytes=self._reading_bytes,
            ) as parquet:
                return _bloom_filters(parquet.metadata, self._schema)
        except (pa.ArrowException, OSError, UnicodeDecodeError, DeltaMaintenanceError):
            return frozenset()

    def _stored_layout(self, parquet: ParquetInput) -> _StoredLayout:
        stored = parquet.stored_columns(
            self._layout.mode, widens=self._layout.widens, verbatim=True
        )
        # Files of one writer usually have the same schema.
        layout = self._stored
        if layout is None or not layout.fits(parquet.schema, stored):
            layout = self._stored = _StoredLayout(self._layout, parquet.schema, stored)
        return layout

    def _batch(self, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        fields = [
            field if array.type == field.type else field.with_type(array.type)
            for field, array in zip(self._schema, arrays, strict=True)
        ]
        return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


class _StoredLayout:
    """Maps the columns of files with one schema to the columns of the table."""

    def __init__(self, layout: DataFileLayout, schema: pa.Schema, stored: StoredColumns) -> None:
        self._layout = layout
        self._schema = schema
        self._stored = stored
        fields = list(schema)
        self._found: dict[str, pa.Field] = {
            item.name: fields[at]
            for item, at in stored.find(layout.columns.fields, fields)
            if at is not None
        }
        self.hidden = {
            name: field
            for name in (layout.row_id_column, layout.row_version_column)
            if name is not None and (field := _exactly(fields, name)) is not None
        }
        self._types = {field.name: field.type for field in layout.schema}
        names = {field.name for field in (*self._found.values(), *self.hidden.values())}
        self.names = [field.name for field in fields if field.name in names]
        self._unchanged = {
            name for name, field in self._found.items() if self._is_unchanged(name, field)
        }

    def fits(self, schema: pa.Schema, stored: StoredColumns) -> bool:
        """Whether this mapping applies to files with the given schema."""
        return stored == self._stored and bool(schema.equals(self._schema, check_metadata=True))

    def convert(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Returns the columns of the table, without partition columns and row IDs."""
        rows = batch.num_rows
        arrays = []
        for item in self._layout.columns.fields:
            field = self._found.get(item.name)
            if field is None:
                arrays.append(pa.nulls(rows, self._types[item.name]))
            elif item.name in self._unchanged:
                arrays.append(batch.column(field.name))
            else:
                arrays.append(self._stored.convert(item, batch.column(field.name), field))
        return arrays

    def _is_unchanged(self, name: str, field: pa.Field) -> bool:
        """Whether the stored values need neither a conversion nor a check."""
        kind, stored = self._types[name], field.type
        if pa.types.is_dictionary(stored):
            stored = stored.value_type
        looked_at = pa.types.is_nested(kind) or self._stored.hybrid_calendar
        return bool(stored == kind and not looked_at)


class _FileColumns:
    """Converts the columns of one file to those of the table."""

    def __init__(self, layout: DataFileLayout, stored: _StoredLayout, file: SourceFile) -> None:
        self._layout = layout
        self._stored = stored
        self._file = file
        self._partition = self._partition_scalars()
        values = dict(file.partition_values)
        for column in layout.required:
            if column.is_partition and not values.get(column.path[0]):
                raise null_in_required(column)

    def convert(self, batch: pa.RecordBatch, first_row: int) -> list[pa.Array]:
        arrays = self._stored.convert(batch)
        arrays += [pa.repeat(value, batch.num_rows) for value in self._partition]
        if self._layout.row_id_column is not None:
            arrays.append(self._row_ids(batch, first_row))
        if self._layout.row_version_column is not None:
            arrays.append(self._row_versions(batch))
        if self._layout.change_type is not None:
            arrays.append(pa.repeat(self._layout.change_type, batch.num_rows))
        return arrays

    def _row_ids(self, batch: pa.RecordBatch, first_row: int) -> pa.Array:
        base = self._file.base_row_id
        if base is None:
            raise CorruptTableError(
                "row tracking is enabled, and the file has no base row ID",
                remedy="give row IDs to all files with backfill-row-ids",
            )
        start = base + first_row
        if base < 0 or start + batch.num_rows > _ROW_IDS:
            raise CorruptTableError(
                f"the base row ID {base} leaves no room for the row IDs of the file",
                remedy="see with fsck which other files have such row IDs",
            )
        fresh = pa.array(start + np.arange(batch.num_rows, dtype=np.int64))
        return self._coalesce_column(batch, self._layout.row_id_column, fresh)

    def _row_versions(self, batch: pa.RecordBatch) -> pa.Array:
        version = self._file.default_row_commit_version
        if version is None:
            raise CorruptTableError(
                "row tracking is enabled, and the file has no default row commit version",
                remedy="give row IDs to all files with backfill-row-ids",
            )
        fresh = pa.repeat(pa.scalar(version, pa.int64()), batch.num_rows)
        return self._coalesce_column(batch, self._layout.row_version_column, fresh)

    def _coalesce_column(
        self, batch: pa.RecordBatch, name: str | None, fresh: pa.Array
    ) -> pa.Array:
        field = self._stored.hidden.get(name or "")
        if field is None:
            return fresh
        values = batch.column(field.name)
        if values.type != pa.int64():
            raise CorruptTableError(f"the hidden column {name} holds {values.type}, not int64")
        return values if not values.null_count else pc.coalesce(values, fresh)

    def _partition_scalars(self) -> list[pa.Scalar]:
        if not self._layout.materializes_partitions:
            return []
        values = dict(self._file.partition_values)
        scalars = []
        for item in self._layout.partition_columns.fields:
            text = pa.array([values.get(item.name)], pa.string())
            typed = parse_partition_values(text, item.type, zone=None)
            if typed.uncertain[0].as_py():
                raise RefusedError(
                    f"the partition value {text[0].as_py()!r} has no time zone, and data files of "
                    "this table hold partition values",
                    remedy="rewrite this partition with the engine that wrote it",
                )
            scalars.append(typed.values[0])
        return scalars


def null_in_required(column: RequiredColumn) -> RefusedError:
    """Returns the error for a source with a null in a NOT NULL column."""
    return RefusedError(
        f"the column {column.name} is NOT NULL, and rows of the file have no value in it",
        remedy="write these rows again with values, or allow nulls with ALTER COLUMN … DROP NOT "
        "NULL",
    )


def _exactly(fields: Sequence[pa.Field], name: str) -> pa.Field | None:
    fields_of_name = [field for field in fields if field.name == name]
    if len(fields_of_name) > 1:
        raise CorruptTableError(f"the hidden column {name} occurs {len(fields_of_name)} times")
    return fields_of_name[0] if fields_of_name else None


def require_bloom_filters(
    metadata: pq.FileMetaData, schema: pa.Schema, *, names: frozenset[str]
) -> None:
    """Raises `LostBloomFilters` if a file has bloom filters of leaves that are not in `names`."""
    if _bloom_filters(metadata, schema) - names:
        raise LostBloomFilters


def _bloom_filters(metadata: pq.FileMetaData, schema: pa.Schema) -> frozenset[str]:
    """Returns the paths of the leaves of a schema that have a bloom filter in any row group."""
    filtered_paths = frozenset[str]().union(*_filters_by_group(metadata))
    return filtered_paths & filterable_paths(schema) if filtered_paths else filtered_paths


def has_bloom_filters(metadata: pq.FileMetaData, paths: frozenset[str]) -> bool:
    """Whether each row group of a file has bloom filters of these leaves."""
    return not paths or all(paths <= group_filters for group_filters in _filters_by_group(metadata))


def _filters_by_group(metadata: pq.FileMetaData) -> Iterator[frozenset[str]]:
    """Yields the paths of the leaves with a bloom filter in each row group."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = map(group.column, range(group.num_columns))
        # Older versions of Arrow neither show nor write filters.
        yield frozenset(
            chunk.path_in_schema
            for chunk in chunks
            if getattr(chunk, "bloom_filter_offset", None) is not None
        )


def row_statistics(
    store: Store,
    layout: DataFileLayout,
    file: SourceFile,
    leaves: Collection[StatisticsLeaf],
    *,
    live: bool,
) -> Mapping[tuple[str, ...], ColumnStatistics]:
    """Returns the statistics of some columns, by physical path.

    Without `live`, deleted rows are included. Errors are those of `DataFileReader.read`.
    """
    part_layout = layout.only({leaf.path[0] for leaf in leaves})
    required = StatisticsColumns(leaves=tuple(leaves), tight_bounds=False)
    collector = StatisticsCollector(required, part_layout.schema)
    for rows in DataFileReader(store, part_layout).read(file):
        collector.offer(rows.live() if live else rows.batch)
    return {leaf.path: collector.bounds(leaf.path) for leaf in leaves}
