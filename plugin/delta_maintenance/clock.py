"""The only source of time and IDs; all other modules take them as arguments."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_FIRST_MILLIS = -62_135_596_800_000
"""0001-01-01."""
_LAST_MILLIS = 253_402_300_799_999
"""The end of the year 9999."""

SKEW = timedelta(minutes=5)
"""How far two clocks may differ that count as correct."""

Clock = Callable[[], datetime]
"""Returns the current instant, with a time zone, on every call."""
NewId = Callable[[], str]
"""Returns a new UUID, as 36 lower-case characters, on every call."""


def now() -> datetime:
    """Returns the current instant, in UTC."""
    return datetime.now(UTC)


def new_id() -> str:
    """Returns a random UUID as 36 lower-case characters."""
    return str(uuid.uuid4())


def instant(epoch_ms: int) -> datetime:
    """Converts milliseconds since 1970-01-01 UTC to an instant.

    A log may contain times outside the range of the calendar; the nearest valid instant is
    returned.
    """
    milliseconds = min(max(epoch_ms, _FIRST_MILLIS), _LAST_MILLIS)
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def text(instant: datetime) -> str:
    """Formats an instant of UTC for people, ISO 8601 to the second."""
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"


def minute_text(instant: datetime) -> str:
    """Formats an instant in sentences for people, such as `2026-11-21 06:40 UTC`."""
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def epoch_millis(instant: datetime) -> int:
    """Converts an instant to milliseconds since 1970-01-01 UTC, rounded down. It must have a time
    zone.
    """
    if instant.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    delta = instant - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400_000) + delta.seconds * 1000 + delta.microseconds // 1000


def as_clock(now: datetime | Clock) -> Clock:
    """Returns a clock; an instant becomes a clock that always shows it."""
    return (lambda: now) if isinstance(now, datetime) else now
