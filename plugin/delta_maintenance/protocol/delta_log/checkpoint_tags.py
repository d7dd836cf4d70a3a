"""The tags of a V2 checkpoint: what readers may take from its top-level file about its sidecars.

Implements "Checkpoint Metadata Tags". All tags are optional and none is proof: a reader that finds
them wrong goes by the files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from delta_maintenance.protocol.delta_log.last_checkpoint import MAX_SCHEMA_CHARACTERS
from delta_maintenance.protocol.delta_log.tally import Tally

SCHEMA_TAG = "sidecarFileSchema"
ACTIONS_TAG = "sidecarNumActions"
SIZE_TAG = "sidecarSizeInBytes"
FILES_TAG = "numOfAddFiles"

SUMS_TAG = "delta-maintenance.sums"
"""Ours: what all sidecars together add up to."""

SparkSchema = Mapping[str, Any]
"""A `StructType` in the JSON form that Spark gives schemas."""


def checkpoint_tags(
    tally: Tally, *, sidecar_actions: int, sidecar_bytes: int, schema: SparkSchema | None
) -> dict[str, str]:
    """The tags of a checkpoint that holds file actions of this tally.

    `schema` is that of the sidecars; None where there are none, or where Spark has no type for a
    field. A schema whose text is too long is left out, as Delta Spark does.
    """
    tags = {
        ACTIONS_TAG: str(sidecar_actions),
        SIZE_TAG: str(sidecar_bytes),
        FILES_TAG: str(tally.adds),
    }
    text = None if schema is None else json.dumps(schema, separators=(",", ":"))
    if text is not None and len(text) <= MAX_SCHEMA_CHARACTERS:
        tags[SCHEMA_TAG] = text
    sums = {
        "adds": tally.adds,
        "tombstones": tally.tombstones,
        "bytes": tally.size,
        "keys": f"{tally.keys:016x}",
    }
    return {**tags, SUMS_TAG: json.dumps(sums, separators=(",", ":"))}


def stated_sums(tags: Mapping[str, str] | None) -> Tally | None:
    """The tally in our tag; None where there is none that can be read."""
    try:
        said = json.loads((tags or {})[SUMS_TAG])
        adds, tombstones, size = (said[name] for name in ("adds", "tombstones", "bytes"))
        if not all(type(n) is int and 0 <= n < 2**63 for n in (adds, tombstones, size)):
            return None
        return Tally(adds, tombstones, size, int(said["keys"], 16) % 2**64)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def stated_schema(tags: Mapping[str, str] | None) -> SparkSchema | None:
    """The schema of the sidecars as the tags have it; None where they have none."""
    try:
        schema = json.loads((tags or {})[SCHEMA_TAG])
    except (ValueError, KeyError, RecursionError):
        return None
    return schema if isinstance(schema, dict) and schema.get("type") == "struct" else None


def stated_actions(tags: Mapping[str, str] | None) -> int | None:
    """How many file actions the sidecars hold according to the tags; None where they do not say."""
    return _stated_number(tags, ACTIONS_TAG)


def stated_counts(tags: Mapping[str, str] | None) -> tuple[int, int] | None:
    """How many adds and removes the sidecars hold according to the tags; None if they do not say.

    Without a usable number of adds, every action counts as one.
    """
    actions, adds = _stated_number(tags, ACTIONS_TAG), _stated_number(tags, FILES_TAG)
    if actions is None:
        return None
    adds = actions if adds is None else min(adds, actions)
    return adds, actions - adds


def exact_counts(tags: Mapping[str, str] | None) -> tuple[int, int] | None:
    """Like `stated_counts`, but None if the number of adds is missing or too large."""
    actions, adds = _stated_number(tags, ACTIONS_TAG), _stated_number(tags, FILES_TAG)
    if actions is None or adds is None or adds > actions:
        return None
    return adds, actions - adds


def _stated_number(tags: Mapping[str, str] | None, name: str) -> int | None:
    text = (tags or {}).get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def spark_schema(schema: pa.Schema) -> SparkSchema | None:
    """A schema in Spark's form; None where Spark has no type for a field."""
    try:
        return _struct(schema)
    except KeyError:
        return None


def merged_schemas(
    one: SparkSchema, other: SparkSchema, *, without: Collection[str] = ()
) -> SparkSchema:
    """The fields of both, those of the first before what only the second has.

    Where a field has two types, the first one's counts. `without` names fields of actions that are
    taken from the first alone.
    """
    theirs = {field["name"]: field for field in other.get("fields", ())}
    fields = []
    for field in one.get("fields", ()):
        match = theirs.pop(field["name"], None)
        kinds = [each["type"] for each in (field, match) if each is not None]
        if len(kinds) == 2 and all(isinstance(kind, Mapping) for kind in kinds):
            mine, same = kinds
            if mine.get("type") == same.get("type") == "struct":
                field = {**field, "type": merged_schemas(mine, same, without=without)}
        fields.append(field)
    others = (field for name, field in theirs.items() if name not in without)
    return {"type": "struct", "fields": [*fields, *others]}


_PRIMITIVES: Mapping[pa.DataType, str] = {
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
}


def _struct(fields: Iterable[pa.Field]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}}
            for field in fields
        ],
    }


def _type(kind: pa.DataType) -> object:
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type),
            "valueType": _type(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    return _PRIMITIVES[kind]
