"""The tags of a V2 checkpoint, which describe its sidecars in the top-level file.

Implements "Checkpoint Metadata Tags". All tags are optional and prove nothing: if a tag contradicts
the files, the files are right.
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
"""A tag of this library: the sums over all sidecars."""

SparkSchema = Mapping[str, Any]
"""A `StructType` in Spark's JSON form."""


def checkpoint_tags(
    tally: Tally, *, sidecar_actions: int, sidecar_bytes: int, schema: SparkSchema | None
) -> dict[str, str]:
    """Returns the tags of a checkpoint with the file actions of this tally.

    `schema` is the schema of the sidecars; None if there are none, or if Spark has no type for a
    field. A schema with a long JSON text is omitted, as in Delta Spark.
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
    """Parses the tally in this library's tag; None if it is missing or invalid."""
    try:
        stated = json.loads((tags or {})[SUMS_TAG])
        adds, tombstones, size = (stated[name] for name in ("adds", "tombstones", "bytes"))
        if not all(type(n) is int and 0 <= n < 2**63 for n in (adds, tombstones, size)):
            return None
        return Tally(adds, tombstones, size, int(stated["keys"], 16) % 2**64)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def stated_schema(tags: Mapping[str, str] | None) -> SparkSchema | None:
    """Parses the schema of the sidecars; None if the tag is missing or invalid."""
    try:
        schema = json.loads((tags or {})[SCHEMA_TAG])
    except (ValueError, KeyError, RecursionError):
        return None
    return schema if isinstance(schema, dict) and schema.get("type") == "struct" else None


def stated_actions(tags: Mapping[str, str] | None) -> int | None:
    """The number of file actions in the sidecars; None if the tag is missing or invalid."""
    return _stated_number(tags, ACTIONS_TAG)


def exact_counts(tags: Mapping[str, str] | None) -> tuple[int, int] | None:
    """The numbers of adds and removes in the sidecars; None unless the tags state both."""
    actions, adds = _stated_number(tags, ACTIONS_TAG), _stated_number(tags, FILES_TAG)
    if actions is None or adds is None or adds > actions:
        return None
    return adds, actions - adds


def _stated_number(tags: Mapping[str, str] | None, name: str) -> int | None:
    text = (tags or {}).get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def spark_schema(schema: pa.Schema) -> SparkSchema | None:
    """Converts a schema to Spark's form; None if Spark has no type for a field."""
    try:
        return _struct(schema)
    except KeyError:
        return None


def merged_schemas(
    one: SparkSchema, other: SparkSchema, *, without: Collection[str] = ()
) -> SparkSchema:
    """Merges the fields of two schemas, those of the first one before fields that only the second
    one has.

    If a field has different types, the type of the first schema is used. Fields of actions in
    `without` are taken from the first schema only.
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
