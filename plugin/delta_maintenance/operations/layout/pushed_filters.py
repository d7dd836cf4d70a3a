"""The filters that Spark pushed to a scan, as its event logs write them.

`PushedFilters` is a list such as `[IsNotNull(id), GreaterThan(id,5), In(city, [Rome,Oslo])]`.
Strings have no quotes there, so a text with commas or parentheses is not understood. A list that
Spark has cut off ends with `...`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import accumulate

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
    join_conditions,
)

EVERYTHING = "(no condition)"
"""The text of a query without condition."""

_DEEPEST = 100
"""The number of brackets inside each other up to which a filter is understood."""
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

    `PartitionFilters` are expressions of Spark such as `(day#12 = 2026-01-02)`, in which columns
    have numbers and values have no quotes.
    """
    pushed = _conditions(metadata.get("PushedFilters", ""), _filter)
    partitions = _conditions(metadata.get("PartitionFilters", ""), _expression)
    parts = [*partitions, *pushed]
    if not parts:
        return EVERYTHING, None
    text = ", ".join(
        _EXPRESSION_ID.sub("", part)
        for name in ("PartitionFilters", "PushedFilters")
        for part in _split_list(metadata.get(name, ""))
    )
    return text, join_conditions(Both, parts)


def _conditions(text: str, parse: Callable[[str], Condition]) -> list[Condition]:
    parts = _split_list(text)
    return [Opaque(part) if _depths(part, max) > _DEEPEST else parse(part) for part in parts]


def _split_list(text: str) -> list[str]:
    inside = text.strip().removeprefix("[")
    return _split(inside.removesuffix("]"))


def _split(text: str, separator: str = ",") -> list[str]:
    """Splits at separators outside of brackets."""
    parts, inside, start = [], 0, 0
    for at, character in enumerate(text):
        inside += (character in "([") - (character in ")]")
        if not inside and text.startswith(separator, at):
            parts.append(text[start:at])
            start = at + len(separator)
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


_OF_COLUMN = re.compile(r"([^\s()]+?)#\d+L?((?:\.[\w`]+)*)")
_CALLS = {"isnull": "IsNull", "isnotnull": "IsNotNull", "StartsWith": "StringStartsWith"}
_IN_BRACKETS = re.compile(r"\(.*\)", re.DOTALL)
_COMPARED = re.compile(r"(\S+) (=|<=>|<|<=|>|>=) (.+)", re.DOTALL)
_LISTED = re.compile(r"(\S+) IN \((.*)\)", re.DOTALL)


def _expression(text: str) -> Condition:
    text = text.strip()
    if _IN_BRACKETS.fullmatch(text) and _is_closed(text[1:-1]):
        return _expression(text[1:-1])
    for word, kind in ((" OR ", Either), (" AND ", Both)):
        parts = _split(text, word)
        if len(parts) > 1:
            return join_conditions(kind, list(map(_expression, parts)))
    if text.startswith("NOT "):
        return Not(_expression(text[4:]))
    call = _CALL.fullmatch(text)
    try:
        if call is not None and call[1] in _CALLS:
            column, *values = _split(call[2])
            return _MADE[_CALLS[call[1]]](_CALLS[call[1]], [_own(column), *values])
        if (match := _LISTED.fullmatch(text)) is not None:
            return OneOf(_column(_own(match[1])), tuple(map(_literal, _split(match[2]))))
        match = _COMPARED.fullmatch(text)
        if match is not None and not _EXPRESSION_ID.search(match[3]):
            return Comparison(_column(_own(match[1])), match[2], _literal(match[3]))
    except (ValueError, IndexError):
        pass
    return Opaque(_EXPRESSION_ID.sub("", text))


def _is_closed(text: str) -> bool:
    """Whether no bracket is closed that was not opened in the text."""
    return _depths(text, min) >= 0


def _depths(text: str, extreme: Callable[..., int]) -> int:
    """Returns the least or the greatest number of open brackets."""
    return extreme(
        accumulate((character in "([") - (character in ")]") for character in text), default=0
    )


def _own(text: str) -> str:
    """Returns the name of a column that has a number."""
    match = _OF_COLUMN.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match[1] + match[2]


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


def _negate(_: str, arguments: list[str]) -> Condition:
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
    "Not": _negate,
    "IsNull": _is_null,
    "IsNotNull": lambda name, arguments: Not(_is_null(name, arguments)),
    "StringStartsWith": _prefix,
}


def _column(text: str) -> tuple[str, ...]:
    return tuple(part.strip("`") for part in text.split("."))


def _literal(text: str) -> Literal:
    # The type of the column decides how the text is read.
    return Literal(text, quoted=True)
