"""The columns of a table's data files, as readers expect and writers store them.

Implements "Writer Requirements for Column Mapping", "Void Type", "Row Tracking" (materialised
columns), "IcebergCompatV1", "IcebergCompatV2", "materializePartitionColumns" and "Change Data
Files" for the contents of data files. A layout is a plain value that can be sent to executors.
Versions of a table with equal layouts can use each other's data files.

Delta Spark refuses to read a file that lacks a column that is declared NOT NULL, and to write a
null into it. In arrays and maps, it does not enforce the declaration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError, UnsupportedFeatureError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.protocol.features.registry import supported_features, without_features
from delta_maintenance.protocol.row_tracking.row_ids import RowTrackingState, row_tracking_state
from delta_maintenance.protocol.schema.data_columns import StoredColumns, arrow_type
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    ColumnMappingMode,
    DeltaType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    UnknownType,
    column_mapping_mode,
    parse_schema,
    physical_name,
    physical_schema,
    require_known_changes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredColumn:
    """A column, or a field of a struct, that is NOT NULL."""

    name: str
    """The logical names, with dots between them."""
    path: tuple[str, ...]
    """The names in new files, from the outermost struct inwards."""
    fields: tuple[StructField, ...]
    """The fields in the schema, likewise."""
    is_partition: bool
    in_required: bool
    """Whether the structs that contain it are NOT NULL, too."""

    def nulls_in(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Returns the rows of new files in which the column has no value; None if all have."""
        values = batch.column(self.path[0])
        within = None
        for name in self.path[1:]:
            within = pc.is_valid(values) if within is None else pc.and_(within, pc.is_valid(values))
            values = values.field(name)
        if not values.null_count:
            return None
        return pc.is_null(values) if within is None else pc.and_(within, pc.is_null(values))


def lacking_column(
    columns: Sequence[RequiredColumn],
    inside: Sequence[pa.Field],
    stored: StoredColumns,
    *,
    depth: int = 0,
) -> RequiredColumn | None:
    """Returns a column that a data file lacks; `inside` are its fields, or those of a struct at a
    depth.
    """
    within: dict[int, list[RequiredColumn]] = {}
    places = stored.find((column.fields[depth] for column in columns), inside)
    for column, (_, at) in zip(columns, places, strict=True):
        if len(column.fields) == depth + 1 and at is None:
            return column
        # A file that lacks a struct has no row with it.
        if len(column.fields) > depth + 1 and at is not None:
            within.setdefault(at, []).append(column)
    for at, below in within.items():
        kind = inside[at].type
        fields = list(kind) if pa.types.is_struct(kind) else []
        lacking = lacking_column(below, fields, stored, depth=depth + 1)
        if lacking is not None:
            return lacking
    return None


def required_columns(
    protocol: Protocol, metadata: Metadata, *, unmaps: bool = False
) -> tuple[RequiredColumn, ...]:
    """Returns the columns that are NOT NULL. With `unmaps`, new files have no column mapping."""
    schema = parse_schema(metadata.schema_string or "")
    mode = "none" if unmaps else column_mapping_mode(protocol, metadata.configuration)
    partitioned = {name.lower() for name in metadata.partition_columns}
    return tuple(_required_fields(schema, mode, (), partitioned, in_required=True))


def _required_fields(
    struct: StructType,
    mode: ColumnMappingMode,
    outer: tuple[StructField, ...],
    partitioned: set[str],
    *,
    in_required: bool,
) -> Iterator[RequiredColumn]:
    for item in struct.fields:
        fields = (*outer, item)
        if not item.nullable and str(item.type) != "void":
            yield RequiredColumn(
                name=".".join(field.name for field in fields),
                path=tuple(physical_name(field, mode) for field in fields),
                fields=fields,
                is_partition=not outer and item.name.lower() in partitioned,
                in_required=in_required,
            )
        if isinstance(item.type, StructType):
            within = in_required and not item.nullable
            yield from _required_fields(item.type, mode, fields, partitioned, in_required=within)


COLUMN_ID = "delta.columnMapping.id"
PHYSICAL_NAME = "delta.columnMapping.physicalName"
NESTED_IDS = ("delta.columnMapping.nested.ids", "parquet.field.nested.ids")
"""The keys in a schema for the IDs of elements, keys and values: the current one, then the former
one.
"""
PARQUET_ID = b"PARQUET:field_id"
"""The metadata key of an Arrow field that becomes the field ID in Parquet."""
CHANGE_TYPE = "_change_type"
"""The column of change data files that says what happened to a row. It is never mapped."""

_VOID = PrimitiveType(name="void")


@dataclass(frozen=True, kw_only=True)
class DataFileLayout:
    """The contents of the data files of one version of a table.

    All names are physical names, unless column mapping is being removed.
    """

    columns: StructType
    """The columns that are stored in data files, without `void` at any level."""
    partition_columns: StructType
    """The columns whose values are stored in the log, in the order of partitioning."""
    mode: ColumnMappingMode
    widens: bool = False
    """Whether files may contain narrower types than the schema ("Type Widening")."""
    row_id_column: str | None = None
    """The hidden column of row IDs; None unless rewritten rows must keep theirs."""
    row_version_column: str | None = None
    """The hidden column of row commit versions, likewise."""
    materializes_partitions: bool = False
    """Whether data files also contain the partition columns."""
    nested_ids: bool = False
    """Whether elements, keys and values have field IDs in Parquet."""
    unmaps: bool = False
    """Whether new files have no mapping: files are read by `mode`, and names are logical names."""
    required: tuple[RequiredColumn, ...] = ()
    """The columns in which readers accept no null. None unless rows are written again."""
    change_type: str | None = None
    """The value of the column `_change_type`, which only change data files have."""

    @classmethod
    def of(cls, protocol: Protocol, metadata: Metadata, *, unmaps: bool = False) -> DataFileLayout:
        """Derives the layout from protocol, schema and properties.

        With `unmaps`, new files are valid for the table after its column mapping is removed.

        `RefusedError` for a schema that data files cannot represent, `UnsupportedFeatureError` for
        types and type changes that this release does not support, `CorruptTableError` for a schema
        that contradicts its own mapping or partitioning.
        """
        features = supported_features(protocol)
        properties = TableProperties.from_configuration(metadata.configuration)
        mode = column_mapping_mode(protocol, metadata.configuration)
        schema = parse_schema(_schema_string(metadata))
        if "typeWidening" in features:
            require_known_changes(schema)
        partitioned = {name.lower() for name in metadata.partition_columns}
        data = tuple(item for item in schema.fields if item.name.lower() not in partitioned)
        stored = _without_void(StructType(fields=data), "the table")
        row_id, row_version = _hidden_columns(protocol, metadata, properties)
        naming: ColumnMappingMode = "none" if unmaps else mode
        return cls(
            columns=_plain(physical_schema(stored, naming)),
            partition_columns=_plain(physical_schema(_partitioning(schema, metadata), naming)),
            mode=mode,
            widens="typeWidening" in features,
            row_id_column=row_id,
            row_version_column=row_version,
            materializes_partitions=bool(metadata.partition_columns)
            and (
                "materializePartitionColumns" in features
                or iceberg_compat(protocol, properties) is not None
            ),
            nested_ids=iceberg_compat(protocol, properties) == 2 and not unmaps,
            unmaps=unmaps,
        )

    @classmethod
    def of_columns(cls, protocol: Protocol, metadata: Metadata) -> DataFileLayout:
        """Derives the layout for reading without row IDs. Raises the errors of `of`."""
        return cls.of(without_features(protocol, ["rowTracking"]), metadata)

    @property
    def written(self) -> DataFileLayout:
        """The layout for reading new files."""
        return replace(self, mode="none", unmaps=False) if self.unmaps else self

    @property
    def tracks_rows(self) -> bool:
        """Whether rewritten rows keep their row IDs and commit versions."""
        return self.row_id_column is not None

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of a written data file: all columns nullable, with their IDs."""
        fields = [self._field(item) for item in self.columns.fields]
        if self.materializes_partitions:
            fields += [self._field(item) for item in self.partition_columns.fields]
        for name in (self.row_id_column, self.row_version_column):
            if name is not None:
                fields.append(pa.field(name, pa.int64()))
        if self.change_type is not None:
            fields.append(pa.field(CHANGE_TYPE, pa.string()))
        return pa.schema(fields)

    @property
    def row_tracking(self) -> DataFileLayout:
        """The layout for reading only row IDs and row commit versions."""
        nothing = StructType(fields=())
        return replace(
            self,
            columns=nothing,
            partition_columns=nothing,
            materializes_partitions=False,
            required=(),
        )

    @property
    def untracked(self) -> DataFileLayout:
        """The layout of files without row IDs and row commit versions."""
        return replace(self, row_id_column=None, row_version_column=None)

    def of_changes(self, change_type: str) -> DataFileLayout:
        """The layout of change data files with changes of one type ("Change Data Files").

        Their partition values are only in the log, and their rows have no row IDs.
        """
        return replace(self.untracked, materializes_partitions=False, change_type=change_type)

    def only(self, names: Collection[str]) -> DataFileLayout:
        """The layout for reading some stored columns, by physical name, and nothing else."""
        columns = tuple(item for item in self.columns.fields if item.name in names)
        return replace(
            self.untracked,
            columns=StructType(fields=columns),
            materializes_partitions=False,
            required=tuple(item for item in self.required if item.path[0] in names),
        )

    def takes_files_of(self, written: DataFileLayout) -> bool:
        """Whether data files of another version's layout `written` are valid for this layout.

        They are if the layouts are equal, apart from columns that were added since, which are null
        in files that lack them, and from columns that need no longer be NOT NULL.
        """
        ours = {item.name: item for item in self.columns.fields}
        if any(ours.get(item.name) != item for item in written.columns.fields):
            return False
        if not {item.name for item in self.required} <= {item.name for item in written.required}:
            return False
        # The order of columns has no meaning for readers.
        return replace(written, columns=self.columns, required=self.required) == self

    def _field(self, item: StructField) -> pa.Field:
        nested = next((item.metadata[key] for key in NESTED_IDS if key in item.metadata), None)
        ids = nested if self.nested_ids and isinstance(nested, Mapping) else {}
        kind = self._type(item.type, item.name, ids)
        return pa.field(item.name, kind, metadata=self._id(item.metadata.get(COLUMN_ID), item.name))

    def _type(self, kind: DeltaType, path: str, ids: Mapping[str, Any]) -> pa.DataType:
        match kind:
            case StructType(fields=fields):
                return pa.struct([self._field(item) for item in fields])
            case ArrayType(element=element):
                return pa.list_(self._nested_field("element", element, path, ids))
            case MapType(key=key, value=value):
                keys = self._nested_field("key", key, path, ids).with_nullable(False)
                return pa.map_(keys, self._nested_field("value", value, path, ids))
        return arrow_type(kind, variants=True)

    def _nested_field(
        self, name: str, kind: DeltaType, path: str, ids: Mapping[str, Any]
    ) -> pa.Field:
        here = f"{path}.{name}"
        field_id = ids.get(here)
        metadata = None if field_id is None else {PARQUET_ID: str(field_id).encode()}
        return pa.field(name, self._type(kind, here, ids), metadata=metadata)

    def _id(self, value: Any, name: str) -> dict[bytes, bytes] | None:
        if self.mode == "none" or self.unmaps:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise CorruptTableError(f"the column {name!r} is mapped and has no ID")
        return {PARQUET_ID: str(value).encode()}


def iceberg_compat(protocol: Protocol, properties: TableProperties) -> int | None:
    """Returns the active version of IcebergCompat, or None."""
    features = supported_features(protocol)
    if "icebergCompatV2" in features and properties.enable_iceberg_compat_v2:
        return 2
    if "icebergCompatV1" in features and properties.enable_iceberg_compat_v1:
        return 1
    return None


def _schema_string(metadata: Metadata) -> str:
    if metadata.schema_string is None:
        raise RefusedError(
            "the table has no schema", remedy="restore the log's metaData from a backup"
        )
    if metadata.format_provider not in (None, "parquet"):
        raise UnsupportedFeatureError(
            f"data files of the format {metadata.format_provider!r} cannot be rewritten",
            remedy="use the engine that wrote them",
        )
    return metadata.schema_string


def _partitioning(schema: StructType, metadata: Metadata) -> StructType:
    by_name = {item.name.lower(): item for item in schema.fields}
    partition_fields = []
    for name in metadata.partition_columns:
        column = by_name.get(name.lower())
        if column is None:
            raise CorruptTableError(f"the partition column {name!r} is not in the schema")
        partition_fields.append(column)
    return StructType(fields=tuple(partition_fields))


def _hidden_columns(
    protocol: Protocol, metadata: Metadata, properties: TableProperties
) -> tuple[str | None, str | None]:
    if row_tracking_state(protocol, metadata.configuration) is not RowTrackingState.ENABLED:
        return None, None
    names = properties.materialized_row_id_column, properties.materialized_row_commit_version_column
    if not all(names):
        raise RefusedError(
            "row tracking is enabled, and the table does not name the columns that keep the row "
            "IDs of rewritten rows",
            remedy="run backfill-row-ids, which names them",
        )
    return names


def _without_void(struct: StructType, where: str) -> StructType:
    fields = []
    for item in struct.fields:
        if item.type != _VOID:
            fields.append(replace(item, type=_stored_type(item.type, item.name)))
    if not fields:
        raise RefusedError(
            f"{where} has no column that a data file can contain",
            remedy="add a column of a type other than void",
        )
    return StructType(fields=tuple(fields))


def _stored_type(kind: DeltaType, column: str) -> DeltaType:
    match kind:
        case StructType():
            return _without_void(kind, f"the struct {column}")
        case ArrayType(element=element):
            return replace(kind, element=_inside(element, column))
        case MapType(key=key, value=value):
            return replace(kind, key=_inside(key, column), value=_inside(value, column))
        case UnknownType():
            raise UnsupportedFeatureError(
                f"the column {column} has the type {kind}, whose values cannot be rewritten",
                remedy="use the engine that wrote them",
            )
    return kind


def _inside(kind: DeltaType, column: str) -> DeltaType:
    if kind == _VOID:
        raise RefusedError(
            f"the column {column} contains void in an array or map, which data files cannot store",
            remedy="change its type",
        )
    return _stored_type(kind, column)


def _plain(struct: StructType) -> StructType:
    """Returns the struct with only the properties that determine how its values are stored."""
    mapping_keys = (COLUMN_ID, PHYSICAL_NAME, *NESTED_IDS)
    return StructType(
        fields=tuple(
            StructField(
                name=item.name,
                type=_plain_type(item.type),
                nullable=True,
                metadata={key: item.metadata[key] for key in mapping_keys if key in item.metadata},
            )
            for item in struct.fields
        )
    )


def _plain_type(kind: DeltaType) -> DeltaType:
    match kind:
        case StructType():
            return _plain(kind)
        case ArrayType(element=element):
            return ArrayType(element=_plain_type(element), contains_null=True)
        case MapType(key=key, value=value):
            return MapType(key=_plain_type(key), value=_plain_type(value), value_contains_null=True)
    return kind
