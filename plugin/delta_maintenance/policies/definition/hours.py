"""Maintenance hours: weekly windows in which work on a table is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from delta_maintenance.operations.core.policy_values import PolicyModel

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = timedelta(days=1)
_WEEK = 8
"""The number of days in which every window starts at least once."""


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"{name!r} is not a time zone; give an IANA name, such as Europe/Paris"
        ) from None
    return name


def _windows(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        _parse_spans(text)
    return texts


class Hours(PolicyModel):
    """Weekly windows in the local time of one time zone."""

    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    """IANA name."""
    windows: Annotated[tuple[str, ...], AfterValidator(_windows), Field(min_length=1)]
    """Such as `22:00-06:00`, `Mon-Fri 20:00-24:00` or `Sun 00:00-24:00`. A window whose end is not
    after its start ends on the next day; its days are those on which it starts."""

    def is_open(self, instant: datetime) -> bool:
        """Whether an instant is in a window."""
        return self.next_opening(instant) == instant

    def next_opening(self, instant: datetime) -> datetime:
        """The first instant in a window, `instant` or later, in UTC."""
        instant = instant.astimezone(UTC)
        return min(
            max(start, instant) for start, end in self._spans(instant) if start < end > instant
        )

    def _spans(self, instant: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The windows from the day before an instant on, for eight days."""
        zone = ZoneInfo(self.timezone)
        yesterday = instant.astimezone(zone).date() - _DAY
        parsed = [_parse_spans(text) for text in self.windows]
        for day in (yesterday + _DAY * number for number in range(_WEEK + 2)):
            for days, start, end in parsed:
                if day.weekday() in days:
                    yield _at(day, start, zone), _at(day, end, zone)


def _at(day: date, since_midnight: timedelta, zone: ZoneInfo) -> datetime:
    """Computed in local time, so that windows are correct on days with 23 or 25 hours."""
    wall = datetime.combine(day, time()) + since_midnight
    return wall.replace(tzinfo=zone).astimezone(UTC)


def _parse_spans(text: str) -> tuple[frozenset[int], timedelta, timedelta]:
    """Parses a window into the days on which it starts, and its start and end since midnight."""
    match = _WINDOW.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a window; write it like 'Mon-Fri 22:00-06:00'")
    start, until = (_clock(match[end]) for end in ("from", "to"))
    return _weekdays(match["first"], match["last"]), start, until if until > start else until + _DAY


def _clock(text: str) -> timedelta:
    hours, minutes = (int(digits) for digits in text.split(":"))
    length = timedelta(hours=hours, minutes=minutes)
    if length > _DAY or minutes > 59:
        raise ValueError(f"{text!r} is not a time of day; the last one is 24:00")
    return length


def _weekdays(first_day: str | None, last_day: str | None) -> frozenset[int]:
    if first_day is None:
        return frozenset(range(7))
    start, end = _DAYS.index(first_day), _DAYS.index(last_day or first_day)
    return frozenset((start + offset) % 7 for offset in range((end - start) % 7 + 1))


_WINDOW = re.compile(
    rf"(?:(?P<first>{'|'.join(_DAYS)})(?:-(?P<last>{'|'.join(_DAYS)}))? +)?"
    r"(?P<from>[0-9]{1,2}:[0-9]{2})-(?P<to>[0-9]{1,2}:[0-9]{2})"
)
