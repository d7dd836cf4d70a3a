"""Metadata changes of a concurrent commit that do not conflict with a commit in progress.

The list is that of Delta Spark: features that are enabled for future commits. Every other change
(a new column, another property, a removed property) could have changed the commit in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    DeltaType,
    MapType,
    StructField,
    StructType,
    parse_schema,
)

MAPPING_MODE = "delta.columnMapping.mode"
_MAPPING_FIELDS = frozenset(
    {
        "delta.columnMapping.id",
        "delta.columnMapping.physicalName",
        "delta.columnMapping.nested.ids",
        "parquet.field.id",
        "parquet.field.nested.ids",
    }
)


def forbidden_change(mine: Metadata, theirs: Metadata, protocol: Protocol) -> str | None:
    """The part of `theirs` that conflicts with a commit that read `mine`, as a noun phrase.

    None if nothing does. `protocol` is the protocol of the version that has `theirs`.
    """
    other_fields = replace(
        theirs, configuration=mine.configuration, schema_string=mine.schema_string
    )
    if other_fields != mine:
        return "its name, partitioning or format"
    removed = sorted(mine.configuration.keys() - theirs.configuration.keys())
    if removed:
        return f"the property {removed[0]}, which was removed"
    changed = {
        key: value
        for key, value in theirs.configuration.items()
        if mine.configuration.get(key) != value
    }
    for key, value in sorted(changed.items()):
        allowed = _ALLOWED.get(key)
        if allowed is None or not allowed(value, mine, theirs, protocol):
            return f"the property {key}"
    if mine.schema_string != theirs.schema_string and not _maps_the_same_columns(mine, theirs):
        return "the schema"
    return None


def enables_row_tracking(mine: Metadata, theirs: Metadata) -> bool:
    """Whether `theirs` enables row tracking and `mine` does not."""
    key = row_tracking.ENABLED_PROPERTY
    return _is_true(theirs.configuration.get(key)) and not _is_true(mine.configuration.get(key))


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() == "true"


def _enabling(feature: str) -> _Allowance:
    def allowed(value: str, _mine: Metadata, _theirs: Metadata, protocol: Protocol) -> bool:
        return _is_true(value) and supports(protocol, feature)

    return allowed


def _with_row_tracking(_value: str, _mine: Metadata, theirs: Metadata, _: Protocol) -> bool:
    return _is_true(theirs.configuration.get(row_tracking.ENABLED_PROPERTY))


def _only_new(key: str) -> _Allowance:
    return lambda _value, mine, _theirs, _protocol: key not in mine.configuration


def _with_v2_checkpoints(value: str, _mine: Metadata, _: Metadata, protocol: Protocol) -> bool:
    return value == "v2" and supports(protocol, "v2Checkpoint")


def _mapping_by_name(_value: str, mine: Metadata, theirs: Metadata, protocol: Protocol) -> bool:
    return _starts_mapping(mine, theirs) and supports(protocol, "columnMapping")


def _starts_mapping(mine: Metadata, theirs: Metadata) -> bool:
    before = mine.configuration.get(MAPPING_MODE, "none")
    return before == "none" and theirs.configuration.get(MAPPING_MODE) == "name"


def _maps_the_same_columns(mine: Metadata, theirs: Metadata) -> bool:
    if not _starts_mapping(mine, theirs) or None in (mine.schema_string, theirs.schema_string):
        return False
    try:
        before, after = (parse_schema(side.schema_string or "") for side in (mine, theirs))
    except CorruptTableError:
        return False
    return _without_mapping(before) == _without_mapping(after)


def _without_mapping(kind: DeltaType) -> DeltaType:
    match kind:
        case StructType(fields=fields):
            return StructType(fields=tuple(_field_without_mapping(field) for field in fields))
        case ArrayType():
            return replace(kind, element=_without_mapping(kind.element))
        case MapType():
            return replace(kind, key=_without_mapping(kind.key), value=_without_mapping(kind.value))
    return kind


def _field_without_mapping(field: StructField) -> StructField:
    field_metadata = {
        key: item for key, item in field.metadata.items() if key not in _MAPPING_FIELDS
    }
    return replace(field, type=_without_mapping(field.type), metadata=field_metadata)


_Allowance = Callable[[str, Metadata, Metadata, Protocol], bool]
_ALLOWED: Mapping[str, _Allowance] = {
    row_tracking.ENABLED_PROPERTY: _enabling(row_tracking.FEATURE),
    "delta.rowTracking.materializedRowIdColumnName": _with_row_tracking,
    "delta.rowTracking.materializedRowCommitVersionColumnName": _with_row_tracking,
    MAPPING_MODE: _mapping_by_name,
    "delta.columnMapping.maxColumnId": _mapping_by_name,
    "delta.enableDeletionVectors": _enabling("deletionVectors"),
    "delta.checkpointPolicy": _with_v2_checkpoints,
    in_commit_timestamps.ENABLED_PROPERTY: _enabling(in_commit_timestamps.FEATURE),
    in_commit_timestamps.ENABLEMENT_VERSION: _only_new(in_commit_timestamps.ENABLEMENT_VERSION),
    in_commit_timestamps.ENABLEMENT_TIMESTAMP: _only_new(in_commit_timestamps.ENABLEMENT_TIMESTAMP),
}
