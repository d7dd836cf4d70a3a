"""Traces of table features in a table's metadata, and the metadata with the feature disabled.

A *trace* is a noun phrase that names what uses the feature, or None. Metadata that cannot be
understood counts as a trace, because it does not prove that the feature is unused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from delta_maintenance.protocol.actions.model import Metadata
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.schema import column_mapping
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    DeltaType,
    MapType,
    StructType,
    UnknownType,
    parse_schema,
    walk,
)

MetadataTrace = Callable[[Metadata], str | None]
MetadataChange = Callable[[Metadata], Metadata]


def is_on(key: str) -> MetadataTrace:
    """A trace if the property is not false."""

    def trace(metadata: Metadata) -> str | None:
        text = metadata.configuration.get(key) or "false"
        return None if text.lower() == "false" else f"the property {key}"

    return trace


def is_set(key: str) -> MetadataTrace:
    """A trace if the property is present, whatever its value."""
    return lambda metadata: f"the property {key}" if key in metadata.configuration else None


def first_of(*traces: MetadataTrace) -> MetadataTrace:
    """The first trace that any of the functions finds."""

    def first(metadata: Metadata) -> str | None:
        return next((usage for trace in traces if (usage := trace(metadata)) is not None), None)

    return first


def without_properties(*keys: str) -> MetadataChange:
    """A change that removes properties."""
    return lambda metadata: _with_configuration(metadata, dict.fromkeys(keys))


def constraint(metadata: Metadata) -> str | None:
    """A trace if the table has a CHECK constraint."""
    prefix = "delta.constraints."
    names = sorted(key for key in metadata.configuration if key.lower().startswith(prefix))
    return f"the constraint {names[0][len(prefix) :]}" if names else None


def mapped_column(metadata: Metadata) -> str | None:
    """A trace for a column mapping mode, or for a column with a physical name or an ID."""
    mode = metadata.configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        return f"the column mapping mode {mode}"
    return _column(metadata, _has_metadata("delta.columnMapping."), "has a physical name")


def without_mapping(metadata: Metadata) -> Metadata:
    """Removes column mapping: its properties, and the IDs and physical names of all fields."""
    if metadata.schema_string is None or mapped_column(metadata) is None:
        return metadata
    removed = _with_configuration(
        metadata, {column_mapping.MODE: None, column_mapping.MAX_COLUMN_ID: None}
    )
    schema = column_mapping.without_mapping(metadata.schema_string)
    return replace(removed, schema_string=schema)


def name_that_needs_mapping(metadata: Metadata) -> str | None:
    """A clause that names a column whose name is allowed or unique only with column mapping."""
    if metadata.schema_string is None:
        return None
    names = column_mapping.names_that_need_mapping(parse_schema(metadata.schema_string))
    if not names:
        return None
    return f"the column {names[0]!r} has a name that is only allowed with column mapping"


def widened_column(metadata: Metadata) -> str | None:
    """A trace for a column whose type was widened; data files may still have the narrow type."""
    return _column(metadata, _has_metadata("delta.typeChanges"), "had another type")


def without_type_changes(metadata: Metadata) -> Metadata:
    """Removes the record of type changes from the schema, at every level."""
    if metadata.schema_string is None or widened_column(metadata) is None:
        return metadata
    schema = _without_key(json.loads(metadata.schema_string), "delta.typeChanges")
    return replace(metadata, schema_string=json.dumps(schema, separators=(",", ":")))


def _without_key(schema: Any, key: str) -> Any:
    """A schema in which no field has a key in its metadata."""
    if isinstance(schema, list):
        return [_without_key(item, key) for item in schema]
    if not isinstance(schema, dict):
        return schema
    members = {
        name: _without_key(value, key) for name, value in schema.items() if name != "metadata"
    }
    if "metadata" in schema:
        members["metadata"] = {name: v for name, v in schema["metadata"].items() if name != key}
    return members


def geometry_column(metadata: Metadata) -> str | None:
    """A trace for a column with a geometry or geography type at any level."""
    return _column(metadata, _geometries, "contains geometries")


def v2_policy(metadata: Metadata) -> str | None:
    """A trace for a checkpoint policy other than classic."""
    policy = metadata.configuration.get(_POLICY, "classic")
    return None if policy == "classic" else f"the checkpoint policy {policy}"


def with_classic_policy(metadata: Metadata) -> Metadata:
    """Sets the checkpoint policy to classic if it is another one."""
    if v2_policy(metadata) is None:
        return metadata
    return _with_configuration(metadata, {_POLICY: "classic"})


def row_ids(metadata: Metadata) -> str | None:
    """A trace unless row tracking is suspended, because new files then get row IDs."""
    enabled = is_on(row_tracking.ENABLED_PROPERTY)(metadata)
    suspended = metadata.configuration.get(row_tracking.SUSPENDED_PROPERTY) or "false"
    if enabled is None and suspended.lower() != "true":
        return "row tracking, which assigns row IDs to new files unless suspended,"
    return enabled


def without_row_ids(metadata: Metadata) -> Metadata:
    """Suspends row tracking."""
    off = {row_tracking.ENABLED_PROPERTY: "false", row_tracking.SUSPENDED_PROPERTY: "true"}
    return _with_configuration(metadata, off)


commit_times: MetadataTrace = first_of(
    is_on(in_commit_timestamps.ENABLED_PROPERTY),
    is_set(in_commit_timestamps.ENABLEMENT_VERSION),
    is_set(in_commit_timestamps.ENABLEMENT_TIMESTAMP),
)
"""A trace for in-commit timestamps, or for the record of when they were enabled."""


def without_commit_times(metadata: Metadata) -> Metadata:
    """Disables in-commit timestamps and removes the record of when they were enabled."""
    off: dict[str, str | None] = {
        in_commit_timestamps.ENABLEMENT_VERSION: None,
        in_commit_timestamps.ENABLEMENT_TIMESTAMP: None,
    }
    if is_on(in_commit_timestamps.ENABLED_PROPERTY)(metadata) is not None:
        off[in_commit_timestamps.ENABLED_PROPERTY] = "false"
    return _with_configuration(metadata, off)


_POLICY = "delta.checkpointPolicy"


def _with_configuration(metadata: Metadata, changes: Mapping[str, str | None]) -> Metadata:
    unchanged = {key: value for key, value in metadata.configuration.items() if key not in changes}
    set_values = {key: value for key, value in changes.items() if value is not None}
    return replace(metadata, configuration={**unchanged, **set_values})


def _column(
    metadata: Metadata, find: Callable[[StructType], Iterator[str]], description: str
) -> str | None:
    if metadata.schema_string is None:
        return "a schema that is not in the log"
    column = next(find(parse_schema(metadata.schema_string)), None)
    return None if column is None else f"the column {column}, which {description},"


def _has_metadata(prefix: str) -> Callable[[StructType], Iterator[str]]:
    def find(schema: StructType) -> Iterator[str]:
        for path, field in walk(schema):
            if any(key.startswith(prefix) for key in field.metadata):
                yield ".".join(path)

    return find


def _geometries(schema: StructType) -> Iterator[str]:
    for field in schema.fields:
        if any(name.startswith(("geometry", "geography")) for name in _unknown_types(field.type)):
            yield field.name


def _unknown_types(kind: DeltaType) -> Iterator[str]:
    match kind:
        case UnknownType(definition=definition):
            yield definition
        case StructType(fields=fields):
            for field in fields:
                yield from _unknown_types(field.type)
        case ArrayType(element=element):
            yield from _unknown_types(element)
        case MapType(key=key, value=value):
            yield from _unknown_types(key)
            yield from _unknown_types(value)
