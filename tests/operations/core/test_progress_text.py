"""The text of progress: amounts with their units, and the time left at the pace so far."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delta_maintenance import clock
from delta_maintenance.operations.core.logged_progress import ProgressText

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ([(0, 1000, 9000)], "files: 1,000 of 9,000"),
        ([(0, 10, None), (60, 20, None)], "files: 20"),
        ([(0, 0, 100), (4, 50, 100)], "files: 50 of 100"),
        ([(0, 0, 100), (10, 50, 100)], "files: 50 of 100, about 10 seconds left"),
        # What was done before the first report does not belong to the pace.
        ([(0, 50, 100), (60, 75, 100)], "files: 75 of 100, about 1 minute left"),
        ([(0, 0, 100), (100, 37, 100)], "files: 37 of 100, about 3 minutes left"),
        ([(0, 0, 100), (3600, 25, 100)], "files: 25 of 100, about 3 hours left"),
        ([(0, 0, 100), (86400, 1, 100)], "files: 1 of 100, about 99 days left"),
        ([(0, 0, 100), (60, 0, 100)], "files: 0 of 100"),
        ([(0, 0, 100), (60, 100, 100)], "files: 100 of 100"),
    ],
)
def test_the_time_left_follows_from_the_pace(
    calls: list[tuple[int, int, int | None]], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ProgressText()
    for seconds, done, total in calls:
        monkeypatch.setattr(clock, "now", lambda at=seconds: BEGAN + timedelta(seconds=at))
        found = text("files", done, total)
    assert found == line


def test_the_unit_is_that_of_the_report() -> None:
    text = ProgressText()
    assert text("files rewritten", 1_200_000, 9_900_000_000, unit="bytes") == (
        "files rewritten: 1.1 MiB of 9.2 GiB"
    )
    assert (
        text("bytes rewritten", 1_200_000, 9_900_000) == "bytes rewritten: 1,200,000 of 9,900,000"
    )
