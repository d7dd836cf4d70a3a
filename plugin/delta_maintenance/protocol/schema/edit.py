"""Editing the fields of a schema string without changing the rest.

The string is parsed as JSON and rendered again. Unknown keys and types keep their place, and
numbers keep the digits they were written with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from delta_maintenance.errors import CorruptTableError

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
            return f"{{{_joined(items)}}}"
        case list():
            return f"[{_joined(_render(item) for item in value)}]"
        case str():
            return _text(value)
    return json.dumps(value)


def _joined(parts: Iterable[str]) -> str:
    return ",".join(parts)


def _text(text: str) -> str:
    # JSON can represent an unpaired surrogate only as an escape.
    unpaired = any("\ud800" <= char <= "\udfff" for char in text)
    return json.dumps(text, ensure_ascii=unpaired)
