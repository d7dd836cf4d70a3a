"""The events that follow from the polls of one table."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from delta_maintenance.errors import StorageAccessError, StorageError
from delta_maintenance.operations.position import Position
from delta_maintenance_airflow.triggers.announcements import CommitWatcher
from delta_maintenance_airflow.triggers.polling import PollResult


@pytest.mark.parametrize("error", [StorageError("down"), StorageAccessError("no")])
def test_only_an_error_that_lasts_is_reported_when_commits_cannot_be_counted(
    error: StorageError,
) -> None:
    class Failing:
        async def count(self, *_: object, **__: object) -> None:
            raise error

    watcher = CommitWatcher("/t", position=Position(version=1, announced=1))
    seen = asyncio.run(watcher.take(PollResult(stream=cast(Any, Failing()), version=5)))
    assert (seen is None) is error.retryable
