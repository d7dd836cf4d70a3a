"""Durations, sizes and instants as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.quantities import duration_text, parse_duration, parse_instant, parse_size


@given(st.timedeltas(min_value=timedelta()))
def test_a_duration_is_read_from_its_text(length: timedelta) -> None:
    assert parse_duration(duration_text(length).replace(",", "")) == length


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("64MB", 64_000_000),
        ("64 MiB", 64 << 20),
        ("64mib", 64 << 20),
        ("1.5 GiB", 3 << 29),
        (" 2  k ", 2000),
        ("9007199254740993", 2**53 + 1),
        ("1 TiB", 1 << 40),
        ("5B", 5),
    ],
)
def test_sizes_have_units_of_1000_or_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "-1", "64 MoB", "MiB", "1e9", "64 iB", "١", "1,000", "9" * 99]
)
def test_other_texts_are_not_sizes(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a size; write it like '64 MiB'"):
        parse_size(text)


@pytest.mark.parametrize(
    "text", ["2026-01-31", "2026-01-31T00:00:00Z", " 2026-01-31T01:00+01:00", "1769817600000"]
)
def test_an_instant_is_a_date_or_has_a_zone_or_is_in_milliseconds(text: str) -> None:
    assert parse_instant(text) == datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("2026-01-31T12:00", "has no time zone; add one, such as Z"),
        ("yesterday", "is not a time; write it like"),
        ("12", "is not a time"),
        ("", "is not a time"),
    ],
)
def test_other_texts_are_no_instants(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        parse_instant(text)
