"""The events that follow from the polls of one table."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import StorageAccessError, StorageError
from delta_maintenance.operations.position import Position
from delta_maintenance.operations.watch import CommitCount, LogWatch
from delta_maintenance_airflow.triggers.announcements import CommitWatcher
from delta_maintenance_airflow.triggers.polling import PollResult
from tests.support.orchestrators.watching import MERGE, OPTIMIZE
from tests.support.stores.counting_store import CountingStore
from tests.support.suite.play import examples
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder


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


class Stream:
    """The stream of one table, without its loop."""

    def __init__(self, store: CountingStore) -> None:
        self.watch = LogWatch(store)

    async def count(self, commits: CommitCount[Position], *, newest: int, enough: int) -> None:
        while not commits.count(self.watch, newest=newest, enough=enough):
            self.watch.poll_again()

    def poll(self) -> PollResult:
        return PollResult(stream=cast(Any, self), version=self.watch.poll().version)


@settings(max_examples=examples(60), deadline=None)
@example(steps=["data", "optimize", "poll", "remake"], min_commits=1)
@example(steps=["data", "data", "lose", "data", "restart"], min_commits=2)
@given(
    steps=st.lists(
        st.sampled_from(["data", "optimize", "poll", "lose", "restart", "remake"]), max_size=30
    ),
    min_commits=st.integers(1, 3),
)
def test_no_commit_is_missed_and_none_announced_twice(steps: list[str], min_commits: int) -> None:
    """The triggerer dies at any moment, also between an event and the storing of its position; and
    another table may replace the one at the address.
    """
    store = CountingStore()
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    stored = Position(version=0, announced=0)
    stream, watcher = Stream(store), CommitWatcher("/t", min_commits=min_commits, position=stored)
    events: list[tuple[int, int]] = []
    for step in itertools.chain(steps, ["poll"]):
        if step in ("data", "optimize"):
            table.commit(MERGE if step == "data" else OPTIMIZE)
        elif step == "restart":
            stream = Stream(store)
            watcher = CommitWatcher("/t", min_commits=min_commits, position=stored)
        else:
            # A log that is as long as the known one is not told from it.
            if step == "remake" and stored.version > 1:
                store.delete_many([file.path for file in list(store.list_from("_delta_log"))])
                table = TableBuilder(store)
                table.commit([protocol(), metadata()])
                table.commit(MERGE)
                events.clear()
            notice = asyncio.run(watcher.take(stream.poll()))
            assert notice is not None
            if notice.event is not None:
                event = (notice.event["from_version"], notice.event["to_version"])
                # The position of a lost event was not stored, so that it is sent again.
                if step != "lose":
                    events.append(event)
            if step == "lose":
                stream = Stream(store)
                watcher = CommitWatcher("/t", min_commits=min_commits, position=stored)
            else:
                stored = notice.position
    data = [version for version, lines in table.commits.items() if lines == MERGE]
    for (_, end), (begin, _) in itertools.pairwise(events):
        assert begin == end
    announced = events[-1][1] if events else -1
    assert all(
        any(first < version <= last for first, last in events)
        for version in data
        if version <= announced
    )
    assert sum(version > announced for version in data) < min_commits
