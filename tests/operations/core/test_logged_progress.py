"""Progress in the log of an orchestrator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delta_maintenance import clock
from delta_maintenance.operations.core.logged_progress import LoggedProgress


class Lines(list[str]):
    def info(self, message: str, /, *arguments: object) -> None:
        self.append(message % arguments)


def test_a_stage_is_logged_at_its_beginning_and_then_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, lines = datetime(2026, 1, 1, tzinfo=UTC), Lines()
    progress = LoggedProgress(lines)
    calls = [
        (0, "read", 1, 5),
        (9, "read", 2, 5),
        (10, "read", 3, 5),
        (11, "write", 0, None),
        (12, "read", 4, 5),
    ]
    for seconds, stage, done, total in calls:
        now = began + timedelta(seconds=seconds)
        monkeypatch.setattr(clock, "now", lambda now=now: now)
        progress(stage, done, total)
    assert lines == ["read: 1 of 5", "read: 3 of 5, about 10 seconds left", "write: 0"]
