"""Durations, sizes and instants as people write them on the command line, in policies, in forms and
in Python, and intervals in the properties of tables.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from delta_maintenance.clock import instant
from delta_maintenance.errors import InvalidRequestError, shorten

_MOST_QUOTED = 80
_LONGEST_INTERVAL = 1000
"""Characters: matching takes more than linear time."""
_LONG_UNITS = {
    "week": timedelta(weeks=1),
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
    "millisecond": timedelta(milliseconds=1),
    "microsecond": timedelta(microseconds=1),
}
# 18 digits cover all durations that a timedelta can represent, and keep `int` cheap.
_LONG_TERM = re.compile(
    rf"([+-]?) ?(?=[0-9.]*[0-9])([0-9]{{0,18}})(\.[0-9]{{0,9}})? ({'|'.join(_LONG_UNITS)})s?\b"
)
_INTERVAL = re.compile(rf"(?:interval )?(?P<terms>{_LONG_TERM.pattern}(?: {_LONG_TERM.pattern})*)")
_SHORT_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "s": timedelta(seconds=1),
}
_SHORT_TERM = re.compile(r"(\d{1,9}) ?(w|d|h|min|m|s)")
_SHORT = re.compile(rf"(?:{_SHORT_TERM.pattern} ?)+")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([kmgtp]?)(i?)b?", re.IGNORECASE | re.ASCII)
_POWERS = ("", "k", "m", "g", "t", "p")
_MILLIS = re.compile(r"[0-9]{9,15}")


def parse_duration(text: str) -> timedelta:
    """Parses `7d`, `1d 12h`, `7 days 12 hours` or ISO 8601 (`P7DT12H`).

    Raises `InvalidRequestError` for all other texts, negative durations among them.
    """
    words = " ".join(text.split())
    try:
        if words[:1] in ("P", "-"):
            length = _iso(words)
        elif _SHORT.fullmatch(words):
            terms = _SHORT_TERM.findall(words)
            length = sum((int(number) * _SHORT_UNITS[unit] for number, unit in terms), timedelta())
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


def duration_text(length: timedelta) -> str:
    """Formats a duration as policies and table properties state it, such as `7 days 12 hours`."""
    if length < timedelta():
        return f"-{duration_text(-length)}"
    minutes, seconds = divmod(length.seconds, 60)
    units = {"day": length.days, "hour": minutes // 60, "minute": minutes % 60, "second": seconds}
    units["microsecond"] = length.microseconds
    amounts = [
        f"{number:,} {unit}{'' if number == 1 else 's'}" for unit, number in units.items() if number
    ]
    return " ".join(amounts) or "0 seconds"


def parse_interval(text: str) -> timedelta:
    """The duration of an interval such as `interval 30 days` or `7 days 12 hours`.

    The word `interval` is optional, and case is ignored. Units range from weeks to microseconds;
    only seconds can have a fraction. Raises `InvalidRequestError` for all other text, including
    months and years, which have no fixed length, negative durations, and texts of more than 1,000
    characters.
    """
    if len(text) > _LONGEST_INTERVAL:
        raise _invalid_interval(text)
    words = _INTERVAL.fullmatch(" ".join(text.lower().split()))
    if words is None:
        raise _invalid_interval(text)
    total = timedelta()
    try:
        for sign, amount, fraction, unit in _LONG_TERM.findall(words["terms"]):
            length = _LONG_UNITS[unit] * int(amount or 0)
            if fraction:
                if unit != "second":
                    raise _invalid_interval(text)
                length += timedelta(microseconds=int(fraction[1:7].ljust(6, "0")))
            total += -length if sign == "-" else length
    except OverflowError:
        raise _invalid_interval(text) from None
    if total < timedelta():
        raise _invalid_interval(text)
    return total


def _invalid_interval(text: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{shorten(text, _MOST_QUOTED)!r} is not a valid interval",
        remedy="use a value such as 'interval 7 days', with units from weeks to microseconds",
    )


def parse_size(text: str) -> int:
    """Parses a number of bytes, with a unit of 1,000 (`64 MB`) or of 1,024 (`64 MiB`), in any case.

    Raises `InvalidRequestError` for all other texts.
    """
    size = _SIZE.fullmatch(" ".join(text.split()))
    if size is None or (size[3] and not size[2]):
        raise InvalidRequestError(
            f"{shorten(text, _MOST_QUOTED)!r} is not a size",
            remedy="write it like '64 MiB', '64MB' or as a number of bytes",
        )
    unit = (1024 if size[3] else 1000) ** _POWERS.index(size[2].lower())
    return int(size[1]) * unit if size[1].isdecimal() else int(float(size[1]) * unit)


def parse_instant(text: str) -> datetime:
    """Parses an instant: ISO 8601 with a zone, a date, which means its first instant in UTC, or
    milliseconds since 1970-01-01 UTC.

    Raises `InvalidRequestError` for all other texts.
    """
    words = text.strip()
    if _MILLIS.fullmatch(words):
        return instant(int(words))
    try:
        parsed = datetime.fromisoformat(words)
    except ValueError:
        raise InvalidRequestError(
            f"{shorten(text, _MOST_QUOTED)!r} is not a time",
            remedy="write it like '2026-01-31T12:00:00Z' or '2026-01-31', in ISO 8601",
        ) from None
    if parsed.tzinfo is None and len(words) > len("2026-01-31"):
        raise InvalidRequestError(f"{words} has no time zone", remedy="add one, such as Z for UTC")
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
