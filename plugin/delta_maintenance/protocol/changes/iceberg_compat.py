"""What a table must be to keep to a form that Iceberg's metadata can describe.

Implements what "Iceberg Compatibility V1" and "Iceberg Compatibility V2" ask of protocol,
properties and schema at the moment in which they are enabled. What they ask of data files is the
business of those who write them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.schema.column_mapping import COLUMN_ID, PHYSICAL_NAME
from delta_maintenance.protocol.schema.edit import Digits, Field, edit_fields
from delta_maintenance.protocol.schema.type_widening import type_changes
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    DecimalType,
    DeltaType,
    MapType,
    PrimitiveType,
    StructType,
    column_mapping_mode,
    parse_schema,
    walk,
)

CompatVersion = Literal[1, 2]

FEATURES: Mapping[CompatVersion, str] = {1: "icebergCompatV1", 2: "icebergCompatV2"}
PROPERTIES: Mapping[CompatVersion, str] = {
    1: "delta.enableIcebergCompatV1",
    2: "delta.enableIcebergCompatV2",
}
NESTED_IDS = "delta.columnMapping.nested.ids"

_VECTORS = "delta.enableDeletionVectors"
_TYPES = frozenset(
    {
        *("byte", "short", "integer", "long", "float", "double", "string", "binary", "boolean"),
        *("date", "timestamp", "timestamp_ntz"),
    }
)


def require_compatible(
    version: CompatVersion, protocol: Protocol, metadata: Metadata, *, active: Collection[str]
) -> None:
    """Refuses to enable a version on a table that is not in its form.

    `active` are the properties that activate a feature, as they are to be.
    """
    name = FEATURES[version]
    if len({*PROPERTIES.values(), "delta.enableIcebergCompatV3"}.intersection(active)) > 1:
        raise RefusedError(
            "a table keeps to one version of Iceberg compatibility",
            remedy=f"set the other one to false together with {PROPERTIES[version]}",
        )
    if column_mapping_mode(protocol, metadata.configuration) == "none":
        raise RefusedError(
            f"{name} needs column mapping", remedy="set delta.columnMapping.mode to name as well"
        )
    if version == 1 and supports(protocol, "deletionVectors"):
        raise RefusedError(
            f"{name} is not for tables that support deletion vectors",
            remedy="drop the feature deletionVectors first, or use icebergCompatV2",
        )
    if _VECTORS in active:
        raise RefusedError(
            f"{name} is not for tables that write deletion vectors",
            remedy=f"set {_VECTORS} to false as well",
        )
    _require_types(version, metadata)
    if supports(protocol, "typeWidening"):
        _require_type_changes(name, metadata)


def with_nested_ids(schema_string: str, *, max_column_id: int) -> tuple[str, int]:
    """The schema with an id for each element, key and value, and the highest id ever given.

    They stand in the nearest field above, by the path from there; ids that are there stay.
    """
    highest = max_column_id
    for _, known in walk(parse_schema(schema_string)):
        given = [known.metadata.get(COLUMN_ID), *known.metadata.get(NESTED_IDS, {}).values()]
        highest = max([highest, *(number for number in given if isinstance(number, int))])

    def number(field: Field) -> None:
        nonlocal highest
        metadata = field["metadata"]
        ids = metadata.get(NESTED_IDS, {})
        for path in _nested_paths(field["type"], metadata[PHYSICAL_NAME]):
            if path not in ids:
                highest += 1
                ids[path] = Digits(highest)
                metadata[NESTED_IDS] = ids

    return edit_fields(schema_string, number), highest


def _nested_paths(kind: Any, above: str) -> Iterator[str]:
    """Of what lies in lists and maps of this type, down to the next struct."""
    if not isinstance(kind, dict):
        return
    parts = {"array": ("element",), "map": ("key", "value")}.get(kind.get("type", ""), ())
    for part in parts:
        yield f"{above}.{part}"
        yield from _nested_paths(kind[f"{part}Type"], f"{above}.{part}")


def _require_types(version: CompatVersion, metadata: Metadata) -> None:
    for path, field in walk(parse_schema(metadata.schema_string or "")):
        for kind in _kinds(field.type):
            match kind:
                case ArrayType() | MapType():
                    allowed = version > 1
                case PrimitiveType(name=name):
                    allowed = name in _TYPES
                case _:
                    allowed = isinstance(kind, DecimalType | StructType)
            if not allowed:
                raise RefusedError(
                    f"{FEATURES[version]} has no place for the column {'.'.join(path)}, "
                    f"which is of type {field.type}",
                    remedy="drop the column"
                    + (", or use icebergCompatV2 for lists and maps" if version == 1 else ""),
                )


def _kinds(kind: DeltaType) -> Iterator[DeltaType]:
    """The type itself and those in its lists and maps; fields of structs are visited by `walk`."""
    yield kind
    match kind:
        case ArrayType(element=element):
            yield from _kinds(element)
        case MapType(key=key, value=value):
            yield from _kinds(key)
            yield from _kinds(value)


def _require_type_changes(name: str, metadata: Metadata) -> None:
    for change in type_changes(parse_schema(metadata.schema_string or "")):
        if not change.is_promotion:
            raise RefusedError(
                f"the column {change.column} was widened from {change.before} to {change.after}, "
                f"which {name} does not know",
                remedy="drop the feature typeWidening first, for which Delta Spark writes "
                "such files anew",
            )
