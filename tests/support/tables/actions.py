"""Actions of a Delta log as plain JSON objects, for tests that write logs.

Each function returns the object of one line, `{"add": {…}}`, with defaults for required fields.
Nothing is checked, because tests also write invalid logs. Further fields are passed by their names
in the log, and a field set to `OMIT` is left out even if it has a default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Action = dict[str, Any]
"""One line of a log: the name of an action, and its object."""

OMIT: Any = object()
"""The value of a field that is left out."""

SCHEMA_STRING = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "part", "type": "string", "nullable": True, "metadata": {}},
        ],
    },
    separators=(",", ":"),
)
"""A long `id` and a string `part`."""


def protocol(
    reader: int = 1,
    writer: int = 2,
    *,
    reader_features: Sequence[str] | None = None,
    writer_features: Sequence[str] | None = None,
    **fields: Any,
) -> Action:
    """A `protocol` action; feature lists are only written if they are given."""
    lists = {"readerFeatures": reader_features, "writerFeatures": writer_features}
    present = {name: list(features) for name, features in lists.items() if features is not None}
    versions = {"minReaderVersion": reader, "minWriterVersion": writer}
    return _action("protocol", versions | present, fields)


def features(*names: str, writer_only: Sequence[str] = ()) -> Action:
    """A `protocol` action of versions 3 and 7 that lists `names` for readers and writers."""
    return protocol(3, 7, reader_features=names, writer_features=[*names, *writer_only])


def metadata(
    *,
    id: str = "6b4d8fd0-5bd6-4cf2-9f4c-b6f2ab4f9b3e",
    schema: str | None = None,
    partitioned_by: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
    **fields: Any,
) -> Action:
    """A `metaData` action. The default schema also has the partition columns, as strings."""
    standard = {
        "id": id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _schema_with(partitioned_by) if schema is None else schema,
        "partitionColumns": list(partitioned_by),
        "configuration": dict(configuration or {}),
    }
    return _action("metaData", standard, fields)


def _schema_with(names: Sequence[str]) -> str:
    schema = json.loads(SCHEMA_STRING)
    known = {field["name"] for field in schema["fields"]}
    more = [name for name in names if name not in known]
    if not more:
        return SCHEMA_STRING
    standard = {"type": "string", "nullable": True, "metadata": {}}
    schema["fields"] += [{"name": name, **standard} for name in more]
    return json.dumps(schema)


def add(path: str, *, dv: Action | None = None, **fields: Any) -> Action:
    """An `add` of one byte without partition values and statistics."""
    standard = {
        "path": path,
        "partitionValues": {},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
    }
    return _action("add", standard | _vector(dv), fields)


def remove(path: str, *, dv: Action | None = None, **fields: Any) -> Action:
    """A `remove` at the instant 1 without further fields."""
    standard = {"path": path, "deletionTimestamp": 1, "dataChange": True}
    return _action("remove", standard | _vector(dv), fields)


def cdc(path: str, **fields: Any) -> Action:
    """A `cdc` of one byte."""
    standard = {"path": path, "partitionValues": {}, "size": 1, "dataChange": False}
    return _action("cdc", standard, fields)


def deletion_vector(
    path_or_inline: str = "ab^-aqEH.-t@S}K{vb[*k^", *, storage_type: str = "u", **fields: Any
) -> Action:
    """A descriptor, for `add` and `remove`; its vector follows the version byte of a file."""
    standard: Action = {"storageType": storage_type, "pathOrInlineDv": path_or_inline}
    if storage_type != "i":
        standard["offset"] = 1
    return _fields(standard | {"sizeInBytes": 36, "cardinality": 2}, fields)


def txn(app_id: str, version: int, **fields: Any) -> Action:
    """A `txn` without a time."""
    return _action("txn", {"appId": app_id, "version": version}, fields)


def domain(name: str, configuration: object = "", *, removed: bool = False) -> Action:
    """A `domainMetadata`; a configuration that is not text is written as it is."""
    value = {"domain": name, "configuration": configuration, "removed": removed}
    return {"domainMetadata": value}


def commit_info(operation: str = "WRITE", **fields: Any) -> Action:
    """A `commitInfo`."""
    return _action("commitInfo", {"operation": operation}, fields)


def checkpoint_metadata(version: int, **fields: Any) -> Action:
    """A `checkpointMetadata`."""
    return _action("checkpointMetadata", {"version": version}, fields)


def sidecar(path: str, size: int, **fields: Any) -> Action:
    """A `sidecar` of `size` bytes."""
    standard = {"path": path, "sizeInBytes": size, "modificationTime": 1}
    return _action("sidecar", standard, fields)


def dv_id(action: Mapping[str, Any]) -> str | None:
    """The unique id of the deletion vector in the object of an `add` or `remove`, or None."""
    vector = action.get("deletionVector")
    if vector is None:
        return None
    offset = vector.get("offset")
    suffix = "" if offset is None else f"@{offset}"
    return f"{vector['storageType']}{vector['pathOrInlineDv']}{suffix}"


def _vector(dv: Action | None) -> Action:
    return {} if dv is None else {"deletionVector": dv}


def _action(name: str, standard: Action, fields: Action) -> Action:
    return {name: _fields(standard, fields)}


def _fields(standard: Action, fields: Action) -> Action:
    return {key: value for key, value in (standard | fields).items() if value is not OMIT}
