"""Durations as people write them, the same on the command line, in policies and in Python."""

from __future__ import annotations

import re
from datetime import timedelta

from delta_maintenance.errors import InvalidRequestError, shortened
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
            f"{shortened(text, _MOST_QUOTED)!r} is not a duration",
            remedy="write it like '7d', '7 days 12 hours' or 'P7DT12H'",
        )
    return length


def _iso(text: str) -> timedelta:
    # Loaded here, because most durations are written in words.
    from pydantic import TypeAdapter

    length: timedelta = TypeAdapter(timedelta).validate_python(text)
    return length
