"""The only source of time and IDs; all other modules take them as arguments."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_FIRST_MILLIS = -62_135_596_800_000
"""0001-01-01."""
_LAST_MILLIS = 253_402_300_799_999
"""The end of the year 9999."""

Clock = Callable[[], datetime]
"""Returns the current instant, with a time zone, on every call."""
NewId = Callable[[], str]
"""Gives a fresh UUID, as 36 lower-case characters, on every call."""


def now() -> datetime:
    """The current instant, in UTC."""
    return datetime.now(UTC)


def new_id() -> str:
    """A random UUID as 36 lower-case characters."""
    return str(uuid.uuid4())


def instant(epoch_ms: int) -> datetime:
    """Milliseconds since 1970-01-01 UTC as an instant.

    A log may tell times that no calendar has; of those, the nearest that it has.
    """
    milliseconds = min(max(epoch_ms, _FIRST_MILLIS), _LAST_MILLIS)
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def epoch_millis(instant: datetime) -> int:
    """Milliseconds since 1970-01-01 UTC, rounded down. The instant must carry a time zone."""
    if instant.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    delta = instant - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400_000) + delta.seconds * 1000 + delta.microseconds // 1000


def as_clock(now: datetime | Clock) -> Clock:
    """A clock from a clock, or from an instant that it shows permanently."""
    return (lambda: now) if isinstance(now, datetime) else now
