"""The filters that Spark pushed to a scan, as its event logs write them.

`PushedFilters` is a list such as `[IsNotNull(id), GreaterThan(id,5), In(city, [Rome,Oslo])]`.
Strings have no quotes there, so a text with commas or parentheses is not understood. A list that
Spark has cut off ends with `...`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import reduce

from delta_maintenance.protocol.schema.condition import (
    Both,
    Comparison,
    Condition,
    Either,
    IsNull,
    Literal,
    Not,
    OneOf,
    Opaque,
    Prefix,
    parse_condition,
)

EVERYTHING = "(no condition)"
"""The text of a query without condition."""

_CALL = re.compile(r"\s*([A-Za-z]+)\((.*)\)\s*", re.DOTALL)
_EXPRESSION_ID = re.compile(r"#\d+L?")
_SIGNS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}


def parse_pushed(metadata: Mapping[str, str]) -> tuple[str, Condition | None]:
    """Returns the filters of a scan as text and as a condition; None for a scan without filters.

    `PartitionFilters` are expressions of Spark, understood as far as they are SQL.
    """
    pushed = [_filter(part) for part in _listed(metadata.get("PushedFilters", ""))]
    partitions = [
        parse_condition(_EXPRESSION_ID.sub("", part), lenient=True)
        for part in _listed(metadata.get("PartitionFilters", ""))
    ]
    parts = [part for part in (*partitions, *pushed) if part is not None]
    if not parts:
        return EVERYTHING, None
    text = ", ".join(
        _EXPRESSION_ID.sub("", part)
        for name in ("PartitionFilters", "PushedFilters")
        for part in _listed(metadata.get(name, ""))
    )
    return text, reduce(Both, parts)


def _listed(text: str) -> list[str]:
    inside = text.strip().removeprefix("[")
    return _split(inside.removesuffix("]"))


def _split(text: str) -> list[str]:
    """Splits at commas outside of brackets."""
    parts, inside, start = [], 0, 0
    for at, character in enumerate(text):
        inside += (character in "([") - (character in ")]")
        if character == "," and not inside:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _filter(text: str) -> Condition:
    call = _CALL.fullmatch(text)
    if call is None:
        return Opaque(text)
    name, arguments = call[1], _split(call[2])
    made = _MADE.get(name)
    try:
        return Opaque(text) if made is None else made(name, arguments)
    except (ValueError, IndexError):
        return Opaque(text)


def _comparison(name: str, arguments: list[str]) -> Condition:
    column, value = arguments
    return Comparison(_column(column), _SIGNS[name], _literal(value))


def _one_of(_: str, arguments: list[str]) -> Condition:
    column, values = arguments
    if not (values.startswith("[") and values.endswith("]")):
        raise ValueError(values)
    return OneOf(_column(column), tuple(map(_literal, _split(values[1:-1]))))


def _two(kind: Callable[[Condition, Condition], Condition]) -> Callable[..., Condition]:
    def made(_: str, arguments: list[str]) -> Condition:
        left, right = arguments
        return kind(_filter(left), _filter(right))

    return made


def _is_null(_: str, arguments: list[str]) -> Condition:
    (column,) = arguments
    return IsNull(_column(column))


def _negated(_: str, arguments: list[str]) -> Condition:
    (part,) = arguments
    return Not(_filter(part))


def _prefix(_: str, arguments: list[str]) -> Condition:
    column, value = arguments
    return Prefix(_column(column), _literal(value))


_MADE: Mapping[str, Callable[[str, list[str]], Condition]] = {
    **dict.fromkeys(_SIGNS, _comparison),
    "In": _one_of,
    "And": _two(Both),
    "Or": _two(Either),
    "Not": _negated,
    "IsNull": _is_null,
    "IsNotNull": lambda name, arguments: Not(_is_null(name, arguments)),
    "StringStartsWith": _prefix,
}


def _column(text: str) -> tuple[str, ...]:
    return tuple(part.strip("`") for part in text.split("."))


def _literal(text: str) -> Literal:
    # The type of the column decides how the text is read.
    return Literal(text, quoted=True)
