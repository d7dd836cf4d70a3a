"""The table schema as a tree, and the physical names of columns.

Implements "Schema Serialization Format" and the naming rules of "Column Mapping". Unknown types are
parsed as `UnknownType`, so that work on the log never fails because of them. The tree is only for
lookups and is never rendered: writers copy the schema string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.limits import MOST_SCHEMA_LEVELS
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.registry import supports

ColumnMappingMode = Literal["none", "id", "name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimitiveType:
    """A type that consists of a name, such as `long` or `timestamp_ntz`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DecimalType:
    """`decimal(precision,scale)`, with at most 38 digits."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownType:
    """A type of a newer protocol or of another engine."""

    definition: str
    """The name of the type, or its JSON if it is not a name."""

    def __str__(self) -> str:
        return self.definition


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayType:
    """A list of elements of one type."""

    element: DeltaType
    contains_null: bool

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapType:
    """A map from keys of one type to values of another."""

    key: DeltaType
    value: DeltaType
    value_contains_null: bool

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class StructField:
    """A named column or nested field."""

    name: str
    """The logical name."""
    type: DeltaType
    nullable: bool
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The JSON values of the schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructType:
    """An ordered list of fields; also the schema as a whole."""

    fields: tuple[StructField, ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{item.name}:{item.type}' for item in self.fields)}>"

    def find(self, name: str) -> StructField | None:
        """The direct field with exactly that name, or None."""
        return next((item for item in self.fields if item.name == name), None)


DeltaType = PrimitiveType | DecimalType | UnknownType | ArrayType | MapType | StructType


def parse_schema(schema_string: str) -> StructType:
    """Parses `metaData.schemaString`.

    A missing `nullable`, `containsNull` or `valueContainsNull` counts as true. Raises
    `CorruptTableError` if it is not a struct in JSON, and `UnsupportedFeatureError` if it is nested
    deeper than `MOST_SCHEMA_LEVELS`.
    """
    try:
        schema = _type(json.loads(schema_string))
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise CorruptTableError("the schema string is not valid JSON") from None
    if not isinstance(schema, StructType):
        raise CorruptTableError(f"the schema is not a struct: {schema}")
    return schema


def column_mapping_mode(protocol: Protocol, configuration: Mapping[str, str]) -> ColumnMappingMode:
    """The mode by which columns are found in data files, statistics and partition values.

    The property has an effect only if the protocol supports column mapping. In that case an unknown
    mode raises `UnsupportedFeatureError`.
    """
    mode = configuration.get("delta.columnMapping.mode")
    if mode is None or not supports(protocol, "columnMapping"):
        return "none"
    mapping_mode = _MODES.get(mode)
    if mapping_mode is None:
        raise UnsupportedFeatureError(
            f"unknown column mapping mode {mode!r}",
            remedy="set delta.columnMapping.mode to none, id or name",
        )
    return mapping_mode


def physical_name(column: StructField, mode: ColumnMappingMode) -> str:
    """The name of a column in partition values, statistics and, except in mode `id`, data files.

    Raises `CorruptTableError` if columns are mapped and this one has no physical name.
    """
    if mode == "none":
        return column.name
    name = column.metadata.get("delta.columnMapping.physicalName")
    if not isinstance(name, str):
        raise CorruptTableError(f"the column {column.name!r} has no physical name")
    return name


def physical_schema(schema: StructType, mode: ColumnMappingMode) -> StructType:
    """The schema with physical names at every level."""
    return schema if mode == "none" else _physical_struct(schema, mode)


def to_arrow_type(delta_type: DeltaType) -> pa.DataType | None:
    """The Arrow type of single values in the statistics and partition values of checkpoints.

    None for types that neither can contain: nested types, `variant`, `void` and unknown types.
    """
    if isinstance(delta_type, DecimalType):
        return pa.decimal128(delta_type.precision, delta_type.scale)
    return _ARROW_TYPES.get(delta_type.name) if isinstance(delta_type, PrimitiveType) else None


def has_bounds(delta_type: DeltaType) -> bool:
    """Whether statistics of a column of this type have a minimum and a maximum.

    Binaries have none. Variants have bounds in another form.
    """
    return to_arrow_type(delta_type) is not None and delta_type != _BINARY


def is_skipped_by(delta_type: DeltaType) -> bool:
    """Whether Delta Spark writes bounds of a column of this type, and skips files by them.

    For booleans it does neither, unlike `deltalake`.
    """
    return has_bounds(delta_type) and delta_type != _BOOLEAN


def walk(schema: StructType) -> Iterator[tuple[tuple[str, ...], StructField]]:
    """Every field at every level with its path, parents first.

    In a path, the words `element`, `key` and `value` stand for lists and maps.
    """
    yield from _walk(schema, ())


def duplicate_names(schema: StructType) -> tuple[tuple[str, ...], ...]:
    """The paths of fields whose name, ignoring case, an earlier field of the same struct has."""
    names_before: set[tuple[tuple[str, ...], str]] = set()
    duplicates = []
    for path, _ in walk(schema):
        key = (path[:-1], path[-1].lower())
        if key in names_before:
            duplicates.append(path)
        names_before.add(key)
    return tuple(duplicates)


_MODES: Mapping[str, ColumnMappingMode] = {"none": "none", "id": "id", "name": "name"}
_ARROW_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_PRIMITIVES = {*_ARROW_TYPES, "variant", "void"}
_BOOLEAN, _BINARY = PrimitiveType(name="boolean"), PrimitiveType(name="binary")
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*\)")


def _type(value: Any, above: int = 0) -> DeltaType:
    """`above` are the levels of structs, arrays and maps around the type."""
    if above > MOST_SCHEMA_LEVELS + 1:
        raise _too_deep()
    if isinstance(value, str):
        return _named_type(value)
    if not isinstance(value, dict):
        raise CorruptTableError(f"the schema contains {value!r} where a type is expected")
    kind = value.get("type")
    if kind == "struct":
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise CorruptTableError("the schema has a struct without a list of fields")
        return StructType(fields=tuple(_field(item, above) for item in fields))
    if kind == "array":
        return ArrayType(
            element=_type(value.get("elementType"), above + 2),
            contains_null=_flag(value, "containsNull"),
        )
    if kind == "map":
        return MapType(
            key=_type(value.get("keyType"), above + 2),
            value=_type(value.get("valueType"), above + 2),
            value_contains_null=_flag(value, "valueContainsNull"),
        )
    return UnknownType(definition=json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _too_deep() -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the schema is nested more than {MOST_SCHEMA_LEVELS} levels deep, where an array or a map "
        "counts as two",
        remedy="use Delta Spark for this table",
    )


def _named_type(name: str) -> DeltaType:
    if name in _PRIMITIVES:
        return PrimitiveType(name=name)
    digits = _DECIMAL.fullmatch(name)
    if digits is not None:
        precision, scale = int(digits[1]), int(digits[2])
        if 1 <= precision <= 38 and scale <= precision:
            return DecimalType(precision=precision, scale=scale)
    return UnknownType(definition=name)


_CONTAINERS: Mapping[str, tuple[type, str]] = {
    "delta.typeChanges": (list, "a list"),
    "delta.columnMapping.nested.ids": (dict, "an object"),
}


def _field(value: Any, above: int) -> StructField:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        raise CorruptTableError("the schema has a field without a name")
    metadata = value.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise CorruptTableError(f"the metadata of the column {name!r} is not an object")
    for key, (kind, description) in _CONTAINERS.items():
        if metadata and not isinstance(metadata.get(key, kind()), kind):
            raise CorruptTableError(f"{key} of the column {name!r} is not {description}")
    return StructField(
        name=name,
        type=_type(value.get("type"), above + 1),
        nullable=_flag(value, "nullable"),
        metadata=metadata or {},
    )


def _flag(value: Mapping[str, Any], key: str) -> bool:
    return value.get(key) is not False


def _physical_struct(struct: StructType, mode: ColumnMappingMode) -> StructType:
    return StructType(
        fields=tuple(
            StructField(
                name=physical_name(item, mode),
                type=_physical_type(item.type, mode),
                nullable=item.nullable,
                metadata=item.metadata,
            )
            for item in struct.fields
        )
    )


def _physical_type(delta_type: DeltaType, mode: ColumnMappingMode) -> DeltaType:
    match delta_type:
        case StructType():
            return _physical_struct(delta_type, mode)
        case ArrayType(element=element, contains_null=contains_null):
            return ArrayType(element=_physical_type(element, mode), contains_null=contains_null)
        case MapType(key=key, value=value, value_contains_null=value_contains_null):
            return MapType(
                key=_physical_type(key, mode),
                value=_physical_type(value, mode),
                value_contains_null=value_contains_null,
            )
    return delta_type


def _walk(
    delta_type: DeltaType, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], StructField]]:
    match delta_type:
        case StructType(fields=fields):
            for item in fields:
                yield (*path, item.name), item
                yield from _walk(item.type, (*path, item.name))
        case ArrayType(element=element):
            yield from _walk(element, (*path, "element"))
        case MapType(key=key, value=value):
            yield from _walk(key, (*path, "key"))
            yield from _walk(value, (*path, "value"))


_INTEGERS = ("byte", "short", "integer", "long")
_CHANGED_DECIMAL = re.compile(r"decimal\( *(\d+) *, *(-?\d+) *\)")
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Digits before the decimal point that a decimal needs for all values of the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeChange:
    """A type change of a column, or of a type nested in it."""

    column: str
    before: str
    after: str

    @property
    def is_known(self) -> bool:
        """Whether the protocol defines this change, so that readers can convert older files."""
        if self.is_promotion or self.before == "void":
            return True
        if (self.before, self.after) == ("date", "timestamp_ntz"):
            return True
        if self.after == "double":
            return self.before in ("byte", "short", "integer")
        wide, narrow = _decimal(self.after), _decimal(self.before)
        if wide is None:
            return False
        if narrow is None:
            narrow = (_DIGITS.get(self.before, 99), 0)
        return wide[1] >= narrow[1] and wide[0] - wide[1] >= narrow[0] - narrow[1]

    @property
    def is_promotion(self) -> bool:
        """Whether Iceberg allows the change as well, so that its readers can convert files."""
        if self.before == self.after or (self.before, self.after) == ("float", "double"):
            return True
        if self.before in _INTEGERS and self.after in _INTEGERS:
            return _INTEGERS.index(self.before) <= _INTEGERS.index(self.after)
        wide, narrow = _decimal(self.after), _decimal(self.before)
        if wide is None or narrow is None:
            return False
        return wide[1] == narrow[1] and wide[0] >= narrow[0]


def type_changes(schema: StructType) -> Iterator[TypeChange]:
    """All type changes that the schema records, at every level."""
    for path, column in walk(schema):
        for change in column.metadata.get("delta.typeChanges") or ():
            if not isinstance(change, dict):
                raise CorruptTableError(f"a type change of the column {'.'.join(path)} is invalid")
            yield TypeChange(
                column=".".join(path),
                before=str(change.get("fromType")),
                after=str(change.get("toType")),
            )


def require_known_changes(schema: StructType) -> None:
    """Raises `UnsupportedFeatureError` if a type change is not one that readers can convert."""
    for change in type_changes(schema):
        if not change.is_known:
            raise UnsupportedFeatureError(
                f"the type of the column {change.column} was changed from {change.before} to "
                f"{change.after}, which type widening does not allow",
                remedy="rewrite the data files with the engine that changed the type",
            )


def _decimal(text: str) -> tuple[int, int] | None:
    """The precision and scale of a decimal type, or None for another type."""
    digits = _CHANGED_DECIMAL.fullmatch(text)
    return None if digits is None else (int(digits[1]), int(digits[2]))
