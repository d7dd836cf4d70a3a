"""The columns that a schema declares NOT NULL, in data files and in rows.

Delta Spark refuses to read a file that lacks such a column, and to write a null into it. In arrays
and maps, it does not enforce the declaration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.schema.data_columns import StoredColumns
from delta_maintenance.protocol.schema.types import (
    ColumnMappingMode,
    StructField,
    StructType,
    column_mapping_mode,
    parse_schema,
    physical_name,
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
