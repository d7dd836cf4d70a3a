"""Values of Plans and Results as text for people."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delta_maintenance.operations.core.facts import fact_text, money_text
from delta_maintenance.quantities import duration_text, parse_interval


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(days=30), "30 days"),
        (timedelta(days=1, hours=12), "1 day 12 hours"),
        (timedelta(weeks=1, minutes=1, seconds=2), "7 days 1 minute 2 seconds"),
        (timedelta(days=1000), "1,000 days"),
        (timedelta(seconds=1, microseconds=500_000), "1 second 500,000 microseconds"),
        (timedelta(), "0 seconds"),
        (-timedelta(hours=25), "-1 day 1 hour"),
    ],
)
def test_durations_have_units(length: timedelta, text: str) -> None:
    assert duration_text(length) == fact_text(length) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 EUR"),
        (0.00000037, "<0.0001 EUR"),
        (0.00312, "0.0031 EUR"),
        (0.5, "0.50 EUR"),
        (7.125, "7.1 EUR"),
        (1250, "1,250 EUR"),
    ],
)
def test_money_has_two_significant_digits_and_a_unit(amount: float, text: str) -> None:
    assert money_text(amount, "EUR") == text


def test_properties_accept_the_text_of_a_duration() -> None:
    length = timedelta(days=7, hours=12, seconds=1)
    assert parse_interval(duration_text(length)) == length
