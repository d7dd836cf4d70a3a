"""Enables column mapping on a table that already has files, and removes it ("Column Mapping").

The files store the columns under their logical names, which become the physical names. Every struct
field at every level gets a column ID; list elements, map keys and map values are not fields. After
a removal, the names in the files are the logical names again. The schema string is parsed as JSON
and rendered again. Unknown keys and types keep their place, and numbers keep the digits they were
written with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.schema.types import (
    ColumnMappingMode,
    StructType,
    duplicate_names,
    parse_schema,
    physical_name,
    walk,
)

Field = dict[str, Any]
"""The JSON object of one field; numbers are `Digits`."""


class Digits(str):
    """A JSON number as written."""

    __slots__ = ()


def edit_fields(schema_string: str, edit: Callable[[Field], None]) -> str:
    """The schema after `edit` changed each field in place, at every level, parents first.

    Raises `CorruptTableError` if the text is not a schema.
    """
    try:
        schema = json.loads(
            schema_string, parse_int=Digits, parse_float=Digits, parse_constant=Digits
        )
        _visit(schema, edit)
        return _render(schema)
    except (ValueError, RecursionError, KeyError, TypeError):
        raise CorruptTableError("the schema string is not a schema") from None


def _visit(kind: Any, edit: Callable[[Field], None]) -> None:
    if not isinstance(kind, dict):
        return
    match kind.get("type"):
        case "struct":
            for field in kind["fields"]:
                edit(field)
                _visit(field["type"], edit)
        case "array":
            _visit(kind["elementType"], edit)
        case "map":
            _visit(kind["keyType"], edit)
            _visit(kind["valueType"], edit)


def _render(value: Any) -> str:
    match value:
        case Digits():
            return str(value)
        case dict():
            items = (f"{_text(key)}:{_render(item)}" for key, item in value.items())
            return f"{{{_join_parts(items)}}}"
        case list():
            return f"[{_join_parts(_render(item) for item in value)}]"
        case str():
            return _text(value)
    return json.dumps(value)


def _join_parts(texts: Iterable[str]) -> str:
    return ",".join(texts)


def _text(text: str) -> str:
    # JSON can represent an unpaired surrogate only as an escape.
    unpaired = any("\ud800" <= char <= "\udfff" for char in text)
    return json.dumps(text, ensure_ascii=unpaired)


MODE = "delta.columnMapping.mode"
MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
COLUMN_ID = "delta.columnMapping.id"
PHYSICAL_NAME = "delta.columnMapping.physicalName"

_KEYS = frozenset(
    {
        COLUMN_ID,
        PHYSICAL_NAME,
        "delta.columnMapping.nested.ids",
        "parquet.field.id",
        "parquet.field.nested.ids",
    }
)
"""The keys of the mapping in the metadata of a field. Delta Spark removes the same keys."""
_ONLY_MAPPED = frozenset(" ,;{}()\n\t=")
"""The characters that names of columns may contain only with a mapping, as in Delta Spark."""


def mapped_by_name(schema_string: str, *, max_column_id: int = 0) -> tuple[str, int]:
    """The schema with an ID and a physical name for every field, and the highest ID.

    New IDs start above `max_column_id` and all IDs in the schema, and are assigned in the order of
    the fields, parents first, as in Delta Spark. Existing IDs do not change.

    Raises `RefusedError` if the schema contains duplicate IDs, or physical names that differ from
    the names under which the columns are stored.
    """
    ids = []
    for path, field in walk(parse_schema(schema_string)):
        name = field.metadata.get(PHYSICAL_NAME, field.name)
        if name != field.name:
            raise RefusedError(
                f"the column {'.'.join(path)} has the physical name {name!r} from an earlier "
                "column mapping, but is stored under its logical name",
                remedy="remove the column mapping metadata from the schema with Delta Spark",
            )
        if COLUMN_ID in field.metadata:
            ids.append(field.metadata[COLUMN_ID])
    unusable = [
        column_id for column_id in ids if not isinstance(column_id, int) or ids.count(column_id) > 1
    ]
    if unusable:
        raise RefusedError(
            f"the schema has the column id {unusable[0]!r} from an earlier column mapping, which "
            "is invalid or not unique",
            remedy="remove the column mapping metadata from the schema with Delta Spark",
        )
    highest = max([max_column_id, *ids])

    def map_field(field: Field) -> None:
        nonlocal highest
        metadata = field.get("metadata") or {}
        if COLUMN_ID not in metadata:
            highest += 1
            metadata[COLUMN_ID] = Digits(highest)
        metadata[PHYSICAL_NAME] = field["name"]
        field["metadata"] = metadata

    return edit_fields(schema_string, map_field), highest


def without_mapping(schema_string: str) -> str:
    """Removes IDs and physical names at every level. The rest does not change."""
    has_mapping = False

    def strip(field: Field) -> None:
        nonlocal has_mapping
        metadata = field.get("metadata")
        if isinstance(metadata, dict) and not _KEYS.isdisjoint(metadata):
            has_mapping = True
            field["metadata"] = {key: metadata[key] for key in metadata if key not in _KEYS}

    stripped = edit_fields(schema_string, strip)
    return stripped if has_mapping else schema_string


def has_other_names(schema: StructType, mode: ColumnMappingMode) -> bool:
    """Whether any field, at any level, has a physical name that is not its logical name."""
    return any(physical_name(field, mode) != field.name for _, field in walk(schema))


def names_that_need_mapping(schema: StructType) -> tuple[str, ...]:
    """Returns the fields, at any level, whose names are allowed or unique only with a mapping."""
    odd = [path for path, field in walk(schema) if not _ONLY_MAPPED.isdisjoint(field.name)]
    return tuple(dict.fromkeys(".".join(path) for path in (*odd, *duplicate_names(schema))))
