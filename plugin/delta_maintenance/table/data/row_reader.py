"""Reads the live rows of data files, with the names and types of the table's schema.

Used for checks that statistics do not suffice for. Only the requested columns are read. Physical
positions, to which deletion vectors refer, are counted while reading.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError, UnsupportedFeatureError
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.actions.file_columns import DELETION_VECTOR, STRING_MAP
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.schema.data_columns import StoredColumns, arrow_type
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.schema.types import (
    ColumnMappingMode,
    StructField,
    StructType,
    column_mapping_mode,
    parse_schema,
    physical_name,
    require_known_changes,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.deleted_rows import DeletedRows, kept_rows
from delta_maintenance.table.data.locations import location_of
from delta_maintenance.table.data.parquet_input import ParquetInput
from delta_maintenance.table.data.row_batches import reading_error
from delta_maintenance.table.read.snapshot import Snapshot

FILES = pa.schema(
    [
        ("path", pa.string()),
        ("partitionValues", STRING_MAP),
        ("size", pa.int64()),
        ("deletionVector", DELETION_VECTOR),
    ]
)
"""The columns of adds that are needed to read files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """The columns to read, and where they are stored. Can be sent to executors."""

    columns: StructType
    """The columns to read."""
    partition_columns: tuple[str, ...]
    """The names of those whose values are in the log."""
    mode: ColumnMappingMode
    zone: tzinfo | None
    """The time zone of partition values that are timestamps without one."""

    @classmethod
    def of(cls, snapshot: Snapshot, names: Collection[str], *, zone: tzinfo | None) -> RowLayout:
        """Returns the layout of the columns of a snapshot that have the given names.

        `UnsupportedFeatureError` if the type of a column was changed in an unsupported way.
        """
        metadata = snapshot.metadata
        fields = parse_schema(metadata.schema_string or "").fields
        columns = StructType(fields=tuple(item for item in fields if item.name in names))
        if supports(snapshot.protocol, "typeWidening"):
            require_known_changes(columns)
        return cls(
            columns=columns,
            partition_columns=tuple(name for name in metadata.partition_columns if name in names),
            mode=column_mapping_mode(snapshot.protocol, metadata.configuration),
            zone=zone,
        )

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns in `Rows`."""
        return pa.schema([(item.name, arrow_type(item.type)) for item in self.columns.fields])


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one file."""

    file: int
    """The index of the file among the given files."""
    count: int
    columns: list[pa.Array]
    """As in `RowLayout.schema`; empty if no column is requested."""


class RowReader:
    """Reads files one after another. Not thread-safe."""

    def __init__(self, store: Store, layout: RowLayout) -> None:
        self._store = store
        self._layout = layout
        self._deleted = DeletedRows(store)

    def read(
        self, files: pa.Table, number: int, *, source: BinaryIO | None = None
    ) -> Iterator[Rows]:
        """Yields the live rows of the file at an index of `files`, which has the schema `FILES`.

        `source` is the content of the file, if it is not that in the store; it is closed.
        `CorruptTableError`, `UnsupportedFeatureError` and `RefusedError` name the file.
        """
        file = files.slice(number, 1)
        path: str = file["path"][0].as_py()
        try:
            yield from self._rows(path, file, number, source)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise reading_error(error, file=path) from None
        except (CorruptTableError, RefusedError, UnsupportedFeatureError) as error:
            raise error.locate(file=path) from None

    def _rows(
        self, path: str, file: pa.Table, number: int, source: BinaryIO | None
    ) -> Iterator[Rows]:
        constants = self._partition_values(file)
        stated = file["deletionVector"][0].as_py()
        vector = None if stated is None else DeletionVectorDescriptor.from_json(stated)
        opened = source or self._store.open(location_of(self._store, path))
        with ParquetInput(opened) as parquet:
            parquet.hold(vector)
            deleted = self._deleted.of(vector, parquet.rows)
            stored, fields = self._stored_columns(parquet)
            names = sorted({field.name for field in fields.values()})
            first_row = 0
            for batch in parquet.batches(names):
                is_kept = kept_rows(deleted, first_row, batch.num_rows)
                first_row += batch.num_rows
                rows = batch if is_kept is None else batch.filter(is_kept)
                count = batch.num_rows if is_kept is None else is_kept.true_count
                if count:
                    columns = [
                        self._column(item, rows, count, stored, fields, constants)
                        for item in self._layout.columns.fields
                    ]
                    yield Rows(number, count, columns)

    def _column(
        self,
        column: StructField,
        rows: pa.RecordBatch,
        count: int,
        stored: StoredColumns,
        fields: Mapping[str, pa.Field],
        constants: Mapping[str, pa.Scalar],
    ) -> pa.Array:
        if column.name in constants:
            return pa.repeat(constants[column.name], count)
        field = fields.get(column.name)
        if field is None:
            return pa.nulls(count, arrow_type(column.type))
        return stored.convert(column, rows.column(field.name), field)

    def _stored_columns(self, parquet: ParquetInput) -> tuple[StoredColumns, dict[str, pa.Field]]:
        """Returns how to convert the columns of a file, and the field of each requested column
        that the file contains.
        """
        stored = parquet.stored_columns(self._layout.mode)
        present = list(parquet.schema)
        columns = (
            item
            for item in self._layout.columns.fields
            if item.name not in self._layout.partition_columns
        )
        return stored, {
            item.name: present[at] for item, at in stored.find(columns, present) if at is not None
        }

    def _partition_values(self, file: pa.Table) -> dict[str, pa.Scalar]:
        layout = self._layout
        values = {}
        for column in layout.columns.fields:
            if column.name in layout.partition_columns:
                key = physical_name(column, layout.mode)
                texts = pc.map_lookup(file["partitionValues"], key, "first")
                typed = parse_partition_values(texts, column.type, zone=layout.zone)
                values[column.name] = typed.values[0]
        return values
