"""Normalises file action lines that deviate from the form of the protocol.

Unambiguous deviations are accepted: integers written as `1.0`, statistics as objects, explicit
nulls. All others are corruption.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.file_columns import (
    DELETION_VECTOR,
    FILE_ACTION_TYPES,
    STRING_MAP,
)
from delta_maintenance.protocol.ndjson.split import FILE_ACTIONS, SINGLE_ACTIONS, parse_present


def tidy_lines(data: bytes, *, name: str, numbers: Sequence[int], pairs: bool = False) -> bytes:
    """Returns the same lines with every known field in the type that the protocol defines.

    `numbers` are the line numbers in the file `name`, for messages; lines without a number follow
    at the end. With `pairs`, maps become lists of objects with a `key` and a `value`.
    `CorruptTableError` for a value that cannot be interpreted.
    """
    tidy = []
    lines = (line for line in data.split(b"\n") if line.strip())
    for line, number in zip_longest(lines, numbers):
        try:
            tidy.append(json.dumps(_tidy_line(line, pairs)).encode())
        except CorruptTableError as error:
            if number is not None:
                error.problem = f"line {number}: {error.problem}"
            raise error.locate(file=name) from None
    return b"\n".join([*tidy, b""])


def _tidy_line(line: bytes, pairs: bool) -> dict[str, dict[str, Any]]:
    actions = parse_present(line)
    for action, value in actions.items():
        if action in SINGLE_ACTIONS:
            raise CorruptTableError(f"{action} follows a file action on the same line")
        if action in FILE_ACTIONS and not isinstance(value, dict):
            raise CorruptTableError(f"{action} is not a JSON object")
    return {
        action: {
            name: _tidy(action, name, item, pairs)
            for name, item in actions[action].items()
            if item is not None
        }
        for action in FILE_ACTIONS.intersection(actions)
    }


def _tidy(action: str, name: str, value: Any, pairs: bool) -> Any:
    kind = FILE_ACTION_TYPES[action].get(name)
    if kind is None:
        return value
    if name == "stats" and isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if kind == STRING_MAP:
        if isinstance(value, dict) and all(
            item is None or isinstance(item, str) for item in value.values()
        ):
            return [{"key": k, "value": v} for k, v in value.items()] if pairs else value
        raise CorruptTableError(f"{action}.{name} is not a map of strings")
    if kind == DELETION_VECTOR:
        if not isinstance(value, dict):
            raise CorruptTableError(f"{action}.{name} is not a JSON object")
        types = {field.name: field.type for field in DELETION_VECTOR}
        return {
            key: _scalar(f"{action}.{name}.{key}", item, types[key]) if key in types else item
            for key, item in value.items()
            if item is not None
        }
    return _scalar(f"{action}.{name}", value, kind)


def _scalar(name: str, value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind) and isinstance(value, str):
        return value
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if pa.types.is_integer(kind) and not isinstance(value, bool):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        limit = 1 << (kind.bit_width - 1)
        if isinstance(value, int) and -limit <= value < limit:
            return value
    raise CorruptTableError(f"{name} is not of type {kind}: {value!r:.80}")
