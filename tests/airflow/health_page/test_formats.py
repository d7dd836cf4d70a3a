"""Numbers, sizes and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delta_maintenance_airflow.health_page import formats

NOW = datetime(2026, 11, 21, 6, 40, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (32 << 20, "32 MiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (104_800, "102 KiB"),
        (3 << 50, "3 PiB"),
        (5_000 << 50, "5,000 PiB"),
    ],
)
def test_sizes_are_shown_in_units_of_1024(value: int | None, text: str) -> None:
    assert formats.size(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(None, "–"), (0, "0%"), (0.001, "<1%"), (0.123, "12%"), (1, "100%")]
)
def test_small_shares_are_not_shown_as_zero(share: float | None, text: str) -> None:
    assert formats.percent(share) == text


@pytest.mark.parametrize(
    ("length", "text", "brief"),
    [
        (timedelta(seconds=3), "just now", "3 s"),
        (timedelta(minutes=1), "1 minute ago", "1 min"),
        (timedelta(hours=23, minutes=59), "23 hours ago", "23 h"),
        (timedelta(days=3), "3 days ago", "3 d"),
        (timedelta(days=-3), "in 3 days", "3 d"),
    ],
)
def test_instants_are_shown_relative_to_now(length: timedelta, text: str, brief: str) -> None:
    assert formats.ago(NOW - length, NOW) == text
    assert formats.brief(length) == brief


def test_texts_of_other_surfaces_name_options_and_times_as_the_page_does() -> None:
    text = "the last vacuum was at 2026-11-20T02:00:59Z; run fsck --repair"
    assert formats.prose(text) == (
        "the last vacuum was at 2026-11-20 02:00 UTC; run fsck with the option repair"
    )


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "<0.1 s"), (0.05, "0.1 s"), (61, "1 minute")])
def test_no_operation_takes_no_time(seconds: float, text: str) -> None:
    assert formats.seconds(seconds) == text


def test_counts_and_instants_are_formatted() -> None:
    assert formats.count(1_234_567) == "1,234,567"
    assert formats.count(None) == "–"


@pytest.mark.parametrize(
    ("holder", "short"),
    [
        ("kept version audit-2026", "audit-2026"),
        ("stream silver", "silver"),
        ("last-read search index", "search index"),
        ("clone s3://science/experiments/orders/", "orders"),
        ("stream s3://lake-state/orders-to-silver", "orders-to-silver"),
        ("stream /", "/"),
    ],
)
def test_holders_are_short_in_the_list(holder: str, short: str) -> None:
    assert formats.short_holder(holder) == short
