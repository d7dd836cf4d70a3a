"""Progress in the log of an orchestrator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from delta_maintenance import clock
from delta_maintenance.operations.core.logged_progress import LoggedProgress


class Lines(list[str]):
    def info(self, message: str, /, *arguments: object) -> None:
        self.append(message % arguments)


Call = tuple[int, str, int, int | None]
"""The seconds since the first call, and the arguments."""


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes calls at their times."""
    began = datetime(2026, 1, 1, tzinfo=UTC)

    def call(progress: LoggedProgress, *calls: Call) -> None:
        for seconds, stage, done, total in calls:
            now = began + timedelta(seconds=seconds)
            monkeypatch.setattr(clock, "now", lambda now=now: now)
            progress(stage, done, total)

    return call


def test_a_stage_is_logged_at_its_beginning_and_then_every_ten_seconds(
    report: Callable[..., None],
) -> None:
    lines = Lines()
    report(
        LoggedProgress(lines),
        (0, "read", 1, 5),
        (9, "read", 2, 5),
        (10, "read", 3, 5),
        (11, "write", 0, None),
        (12, "read", 4, 5),
    )
    assert lines == ["read: 1 of 5", "read: 3 of 5, about 10 seconds left", "write: 0"]


def test_the_end_of_a_stage_is_logged_once(report: Callable[..., None]) -> None:
    lines = Lines()
    with LoggedProgress(lines) as progress:
        report(progress, (0, "read", 1, 3), (1, "read", 2, 3), (2, "read", 3, 3), (3, "read", 4, 3))
        assert lines == ["read: 1 of 3", "read: 3 of 3"]
        report(progress, (4, "read", 1, 9), (5, "read", 9, 9))
        report(progress, (6, "read", 9, 9))
    assert lines == ["read: 1 of 3", "read: 3 of 3", "read: 9 of 9"]


def test_the_last_state_of_an_unfinished_stage_is_logged_at_the_end_of_the_work(
    report: Callable[..., None],
) -> None:
    lines = Lines()
    with pytest.raises(ValueError, match="gone"), LoggedProgress(lines) as progress:
        report(progress, (0, "read", 1, 3), (1, "read", 2, 3), (2, "write", 5, None))
        raise ValueError("gone")
    assert lines == ["read: 1 of 3", "write: 5", "read: 2 of 3"]
