"""Maintenance hours: by the clock on the wall, over midnight and through its changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from delta_maintenance.policies.definition.hours import Hours

PARIS = ZoneInfo("Europe/Paris")
HOUR = timedelta(hours=1)


def at(text: str, zone: ZoneInfo | None = None) -> datetime:
    """An instant; without a zone in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=zone or UTC)


@pytest.mark.parametrize(
    ("window", "instant", "is_open"),
    [
        ("22:00-06:00", "2026-11-21T22:00", True),
        ("22:00-06:00", "2026-11-21T05:59", True),
        ("22:00-06:00", "2026-11-21T06:00", False),
        ("22:00-06:00", "2026-11-21T21:59", False),
        ("00:00-24:00", "2026-11-21T23:59", True),
        ("Sat-Sun 00:00-24:00", "2026-11-21T12:00", True),
        ("Sat-Sun 00:00-24:00", "2026-11-23T00:00", False),
        ("Fri 22:00-06:00", "2026-11-21T05:00", True),
        ("Sat 22:00-06:00", "2026-11-21T05:00", False),
        ("Sat-Mon 10:00-11:00", "2026-11-23T10:30", True),
        ("Sat-Mon 10:00-11:00", "2026-11-24T10:30", False),
        ("mon 9:00-9:00", "2026-11-24T08:59", True),
    ],
)
def test_a_window_is_open_from_its_beginning_until_before_its_end(
    window: str, instant: str, is_open: bool
) -> None:
    assert Hours(windows=(window,)).is_open(at(instant)) is is_open


def test_windows_are_on_the_clock_of_their_zone() -> None:
    hours = Hours(timezone="Europe/Paris", windows=("22:00-23:00",))
    assert hours.is_open(at("2026-07-01T20:30")) and not hours.is_open(at("2026-07-01T22:30"))
    assert hours.is_open(at("2026-12-01T21:30")) and not hours.is_open(at("2026-12-01T20:30"))


def test_a_window_in_the_skipped_hour_is_omitted_that_day() -> None:
    # On 29 March 2026, 02:30 does not exist in Paris.
    hours = Hours(timezone="Europe/Paris", windows=("02:00-03:00",))
    opening = hours.next_opening(at("2026-03-29T00:30", PARIS))
    assert opening == at("2026-03-30T02:00", PARIS)


def test_a_window_across_a_change_of_the_clock_keeps_its_ends() -> None:
    hours = Hours(timezone="Europe/Paris", windows=("Sat 22:00-06:00",))
    assert hours.is_open(at("2026-10-25T05:59", PARIS)), "nine hours long"
    assert not hours.is_open(at("2026-10-25T06:00", PARIS))


@pytest.mark.parametrize(
    "window", ["", "22-06", "22:00", "25:00-26:00", "10:00-24:01", "10:60-11:00", "Tag 1:00-2:00"]
)
def test_invalid_windows_are_refused(window: str) -> None:
    with pytest.raises(ValidationError):
        Hours(windows=(window,))


def test_hours_without_a_window_are_refused() -> None:
    with pytest.raises(ValidationError):
        Hours(windows=())


_INSTANT = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)).map(
    lambda naive: naive.replace(tzinfo=UTC)
)
_DAYS = st.sampled_from(["", "Mon ", "Sat-Sun ", "Fri-Mon ", "Wed-Wed "])
_CLOCK = st.builds(lambda h, m: f"{h:02}:{m:02}", st.integers(0, 23), st.sampled_from([0, 15, 59]))
_WINDOW = st.builds(lambda day, a, b: f"{day}{a}-{b}", _DAYS, _CLOCK, _CLOCK)
_ZONES = st.sampled_from(["UTC", "Europe/Paris", "America/New_York", "Asia/Kathmandu"])


@given(_INSTANT, st.lists(_WINDOW, min_size=1, max_size=3), _ZONES)
def test_the_next_opening_is_the_first_open_time(
    instant: datetime, windows: list[str], zone: str
) -> None:
    hours = Hours(timezone=zone, windows=tuple(windows))
    opening = hours.next_opening(instant)
    assert opening >= instant and hours.is_open(opening)
    if opening > instant:
        between = [instant + (opening - instant) * step / 7 for step in range(7)]
        assert not any(hours.is_open(each) for each in between)
        assert not hours.is_open(opening - timedelta(microseconds=1))
    assert opening - instant < 9 * 24 * HOUR
