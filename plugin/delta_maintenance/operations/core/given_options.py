"""Options and durations as people write them in forms, policies and on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any

from delta_maintenance.errors import InvalidRequestError, closest, shorten
from delta_maintenance.operations.core.flags import flag_fields
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import AnyOperation
from delta_maintenance.protocol.features.properties import parse_interval

_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "s": timedelta(seconds=1),
}
_TERM = re.compile(r"(\d{1,9}) ?(w|d|h|min|m|s)")
_SHORT = re.compile(rf"(?:{_TERM.pattern} ?)+")
_MOST_QUOTED = 80


def parse_duration(text: str) -> timedelta:
    """Parses `7d`, `1d 12h`, `7 days 12 hours` or ISO 8601 (`P7DT12H`).

    Raises `InvalidRequestError` for all other texts, negative durations among them.
    """
    words = " ".join(text.split())
    try:
        if words[:1] in ("P", "-"):
            length = _iso(words)
        elif _SHORT.fullmatch(words):
            terms = _TERM.findall(words)
            length = sum((int(number) * _UNITS[unit] for number, unit in terms), timedelta())
        else:
            length = parse_interval(words)
    except (InvalidRequestError, OverflowError, ValueError):
        length = timedelta(-1)
    if length < timedelta():
        raise InvalidRequestError(
            f"{shorten(text, _MOST_QUOTED)!r} is not a duration",
            remedy="write it like '7d', '7 days 12 hours' or 'P7DT12H'",
        )
    return length


def _iso(text: str) -> timedelta:
    # Loaded here, because most durations are written in words.
    from pydantic import TypeAdapter

    length: timedelta = TypeAdapter(timedelta).validate_python(text)
    return length


def read_options(record: AnyOperation, given: Mapping[str, Any]) -> Record:
    """Reads the Options of an operation, with durations as people write them (`30 days`).

    `InvalidRequestError` names an unknown option and the one that was meant, options that are
    missing, and a value that is not allowed.
    """
    require_known(record, given)
    missing = [name for name in record.must_set if name not in given]
    if missing:
        raise InvalidRequestError(
            f"{record.name} lacks the option {' and the option '.join(missing)}",
            remedy=f"give options such as {json.dumps(record.example)}",
        )
    return _read(record, given)


def without_empty(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that have a value; the others are those of the policy."""
    return {name: value for name, value in given.items() if value not in (None, "")}


def check_options(record: AnyOperation, given: Mapping[str, Any]) -> None:
    """Raises the errors of `read_options` for what is given; the rest may come from a policy."""
    require_known(record, given)
    _read(record, {**record.example, **given})


def require_known(record: AnyOperation, names: Mapping[str, Any]) -> None:
    """Raises `InvalidRequestError` for a name that is no option of the operation."""
    option_names = [field.name for field in fields(record.options)]
    for name in names:
        if name not in option_names:
            meant = closest(name, option_names)
            raise InvalidRequestError(
                f"{record.name} has no option {name!r}",
                remedy=f"give {meant!r}, if that was meant"
                if meant is not None
                else f"give some of {', '.join(option_names)}",
            )


def _read(record: AnyOperation, given: Mapping[str, Any]) -> Record:
    durations = {field.name for field in flag_fields(record.options) if field.kind is timedelta}
    values = {
        name: _duration(name, value) if name in durations and isinstance(value, str) else value
        for name, value in given.items()
    }
    read: Record = record.options.from_json(values)
    return read


def _duration(name: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error.problem}", remedy=error.remedy) from None
