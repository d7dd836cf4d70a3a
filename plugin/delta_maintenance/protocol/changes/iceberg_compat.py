"""Conditions for enabling Iceberg compatibility.

Implements the requirements of "Iceberg Compatibility V1" and "Iceberg Compatibility V2" for
protocol, properties and schema at the time of enablement. The writers of data files implement the
requirements for data files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.schema.column_mapping import (
    COLUMN_ID,
    PHYSICAL_NAME,
    Digits,
    Field,
    edit_fields,
)
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    DecimalType,
    DeltaType,
    MapType,
    PrimitiveType,
    StructType,
    column_mapping_mode,
    parse_schema,
    type_changes,
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
    """Raises `RefusedError` if a table does not meet the requirements of a version.

    `active` contains the properties that will activate a feature after the change.
    """
    name = FEATURES[version]
    if len({*PROPERTIES.values(), "delta.enableIcebergCompatV3"}.intersection(active)) > 1:
        raise RefusedError(
            "a table can have only one version of Iceberg compatibility",
            remedy=f"set the other version to false together with {PROPERTIES[version]}",
        )
    if column_mapping_mode(protocol, metadata.configuration) == "none":
        raise RefusedError(
            f"{name} requires column mapping", remedy="set delta.columnMapping.mode to name as well"
        )
    if version == 1 and supports(protocol, "deletionVectors"):
        raise RefusedError(
            f"{name} does not allow the table feature deletionVectors",
            remedy="drop the feature deletionVectors first, or use icebergCompatV2",
        )
    if _VECTORS in active:
        raise RefusedError(
            f"{name} does not allow writing deletion vectors",
            remedy=f"set {_VECTORS} to false as well",
        )
    _require_types(version, metadata)
    if supports(protocol, "typeWidening"):
        _require_type_changes(name, metadata)


def with_nested_ids(schema_string: str, *, max_column_id: int) -> tuple[str, int]:
    """The schema with an ID for each list element, map key and map value, and the highest ID.

    The IDs are stored in the metadata of the nearest enclosing field, keyed by the path from that
    field. Existing IDs do not change.
    """
    highest = max_column_id
    for _, known_field in walk(parse_schema(schema_string)):
        stated_ids = [
            known_field.metadata.get(COLUMN_ID),
            *known_field.metadata.get(NESTED_IDS, {}).values(),
        ]
        highest = max([highest, *(number for number in stated_ids if isinstance(number, int))])

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
    """The paths of elements, keys and values inside this type, down to the next struct."""
    if not isinstance(kind, dict):
        return
    members = {"array": ("element",), "map": ("key", "value")}.get(kind.get("type", ""), ())
    for member in members:
        yield f"{above}.{member}"
        yield from _nested_paths(kind[f"{member}Type"], f"{above}.{member}")


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
                    f"{FEATURES[version]} does not support the type {field.type} of the column "
                    f"{'.'.join(path)}",
                    remedy="drop the column"
                    + (", or use icebergCompatV2 for lists and maps" if version == 1 else ""),
                )


def _kinds(kind: DeltaType) -> Iterator[DeltaType]:
    """The type and the types nested in its lists and maps; `walk` visits the fields of structs."""
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
                f"the type of the column {change.column} was widened from {change.before} to "
                f"{change.after}, which {name} does not support",
                remedy="drop the feature typeWidening first with Delta Spark, which rewrites the "
                "affected files",
            )
