"""Detection of dropped columns and former types in data files.

In a table with column mapping, a dropped column and the former type of a changed column remain in
the data files ("Column Mapping", "Type Widening").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import Metadata
from delta_maintenance.protocol.data_files.layout import COLUMN_ID, NESTED_IDS, DataFileLayout
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.protocol.schema.data_columns import StoredColumns, arrow_type, is_list
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    ColumnMappingMode,
    DecimalType,
    DeltaType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    parse_schema,
)


def may_have_dropped_columns(metadata: Metadata, mode: ColumnMappingMode) -> bool:
    """Whether columns may have been dropped, according to the table's schema.

    Column IDs are never reused, so a missing ID below the highest one belongs to a dropped column.
    Without column mapping, columns cannot be dropped.
    """
    if mode == "none":
        return False
    properties = TableProperties.from_configuration(metadata.configuration)
    highest = properties.column_mapping_max_column_id
    return highest is None or len(set(_ids(parse_schema(metadata.schema_string or "")))) < highest


def holds_other_columns(schema: pa.Schema, layout: DataFileLayout, stored: StoredColumns) -> bool:
    """Whether a file schema contains a column, at any level, that the table does not have.

    Partition columns and the hidden columns of row tracking belong to the table.
    """
    besides = [item.name for item in layout.partition_columns.fields]
    besides += [n for n in (layout.row_id_column, layout.row_version_column) if n is not None]
    return holds_columns_besides(schema, layout.columns, stored, besides=besides)


def holds_columns_besides(
    schema: pa.Schema, columns: StructType, stored: StoredColumns, *, besides: Collection[str]
) -> bool:
    """Whether a file schema contains a column, at any level, that is none of these columns, and
    whose name, ignoring case, is not among `besides`.
    """
    excluded = {name.lower() for name in besides}
    fields = [field for field in schema if field.name.lower() not in excluded]
    return _others(fields, columns.fields, stored)


def holds_other_names(schema: pa.Schema, layout: DataFileLayout, stored: StoredColumns) -> bool:
    """Whether a file with this schema would be read differently without column mapping.

    That is the case if it contains a column, at any level, that the table does not have, or that is
    stored under another name than its logical one. The names of the layout are logical names.
    """
    if holds_other_columns(schema, layout, stored):
        return True
    return _other_names(list(schema), layout.columns.fields, stored)


def holds_other_types(schema: pa.Schema, layout: DataFileLayout, stored: StoredColumns) -> bool:
    """Whether a file schema contains a column, at any level, whose type the table has widened."""
    return _other_types(list(schema), layout.columns.fields, stored)


def needs_widening(schema: pa.Schema, layout: DataFileLayout, stored: StoredColumns) -> bool:
    """Whether a file with this schema can only be read with the feature `typeWidening`.

    Looks at the file as a reader of a table without the feature does, independently of
    `holds_other_types`, which selects the files to rewrite. Raises `CorruptTableError` for a file
    that contradicts the schema with the feature as well.
    """
    try:
        replace(stored, widens=False).require_types(layout.columns, list(schema))
    except RefusedError:
        return True
    return False


def _other_types(
    fields: Sequence[pa.Field], expected: Sequence[StructField], stored: StoredColumns
) -> bool:
    for item, at in stored.find(expected, fields):
        if at is not None and _is_other_type(fields[at].type, item.type, stored):
            return True
    return False


def _other_names(
    fields: Sequence[pa.Field], expected: Sequence[StructField], stored: StoredColumns
) -> bool:
    for item, at in stored.find(expected, fields):
        if at is not None and (
            fields[at].name != item.name
            or _differs(fields[at].type, item.type, stored, _other_names)
        ):
            return True
    return False


def _differs(
    kind: pa.DataType,
    expected: DeltaType,
    stored: StoredColumns,
    fields_differ: Callable[[Sequence[pa.Field], Sequence[StructField], StoredColumns], bool],
) -> bool:
    """Whether `fields_differ` of any of the outermost structs in a type."""
    match expected:
        case StructType(fields=fields) if pa.types.is_struct(kind):
            return fields_differ(list(kind), fields, stored)
        case ArrayType(element=element) if is_list(kind):
            return _differs(kind.value_type, element, stored, fields_differ)
        case MapType(key=key, value=value) if pa.types.is_map(kind):
            return _differs(kind.key_type, key, stored, fields_differ) or _differs(
                kind.item_type, value, stored, fields_differ
            )
    return False


def _is_other_type(kind: pa.DataType, expected: DeltaType, stored: StoredColumns) -> bool:
    match expected:
        case StructType(fields=fields):
            return pa.types.is_struct(kind) and _other_types(list(kind), fields, stored)
        case ArrayType(element=element):
            return is_list(kind) and _is_other_type(kind.value_type, element, stored)
        case MapType(key=key, value=value):
            return pa.types.is_map(kind) and (
                _is_other_type(kind.key_type, key, stored)
                or _is_other_type(kind.item_type, value, stored)
            )
        case PrimitiveType() | DecimalType():
            narrow = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            narrow = narrow or pa.types.is_date(kind) or pa.types.is_decimal(kind)
            return bool(narrow) and kind != arrow_type(expected, variants=True)
    return False


def _others(
    fields: Sequence[pa.Field], expected: Sequence[StructField], stored: StoredColumns
) -> bool:
    columns = {at: item for item, at in stored.find(expected, fields) if at is not None}
    if len(columns) < len(fields):
        return True
    return any(
        _differs(fields[at].type, item.type, stored, _others) for at, item in columns.items()
    )


def _ids(kind: DeltaType) -> Iterator[int]:
    match kind:
        case StructType(fields=fields):
            for item in fields:
                yield from _own_ids(item)
                yield from _ids(item.type)
        case ArrayType(element=element):
            yield from _ids(element)
        case MapType(key=key, value=value):
            yield from _ids(key)
            yield from _ids(value)


def _own_ids(item: StructField) -> Iterator[int]:
    column_id = item.metadata.get(COLUMN_ID)
    if isinstance(column_id, int):
        yield column_id
    for key in NESTED_IDS:
        nested = item.metadata.get(key)
        if isinstance(nested, dict):
            yield from (value for value in nested.values() if isinstance(value, int))
