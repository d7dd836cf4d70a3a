"""The trigger of the deferred sensor: when it fires, and how a wait in vain ends."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from delta_maintenance.errors import StorageAccessError, StorageError
from delta_maintenance.operations.watch import CommitFilter, WaitCondition
from delta_maintenance_airflow.hooks import DeltaHook
from delta_maintenance_airflow.triggers import DeltaCommitTrigger, polling
from tests.support.orchestrators.watching import MERGE, OPTIMIZE, eventually, run, running
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    store = CountingStore()

    async def aopen_watched(self: DeltaHook, uri: str) -> CountingStore:
        return store

    monkeypatch.setattr(DeltaHook, "aopen_watched", aopen_watched)
    return store


@pytest.fixture
def table(store: CountingStore) -> TableBuilder:
    """Version 1."""
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    table.commit([add("a")])
    return table


def trigger(condition: WaitCondition, **arguments: Any) -> DeltaCommitTrigger:
    given = {"table_uri": "memory://lake/t", "poll_interval": 0.01, **arguments}
    return DeltaCommitTrigger(condition=condition.to_json(), **given)


async def polled(store: CountingStore, count: int = 3) -> None:
    seen = len(store.requests)
    await eventually(lambda: len(store.requests) >= seen + count)


@pytest.mark.parametrize(
    ("condition", "lines", "facts"),
    [
        (WaitCondition(version=3), [MERGE, OPTIMIZE], {"version": 3}),
        (WaitCondition(after_version=1), [OPTIMIZE], {"version": 2, "commits": 1}),
        (
            WaitCondition(after_version=1, commits=CommitFilter(data_changes_only=True)),
            [OPTIMIZE, MERGE],
            {"version": 3, "commits": 1},
        ),
        (
            WaitCondition(min_commits_since_checkpoint=4),
            [OPTIMIZE, MERGE],
            {"version": 3, "checkpoint_version": None, "commits": 4},
        ),
    ],
)
def test_it_fires_once_when_the_condition_is_true(
    table: TableBuilder,
    store: CountingStore,
    condition: WaitCondition,
    lines: list[Any],
    facts: dict[str, Any],
) -> None:
    async def scenario() -> None:
        async with running(trigger(condition).run()) as events:
            for commit in lines:
                await polled(store)
                assert events == []
                table.commit(commit)
            await eventually(lambda: len(events) == 1)
            await asyncio.sleep(0.05)
        assert events == [{"status": "success", "table": store.root, **facts}]
        json.dumps(events)

    run(scenario())


def test_it_survives_a_restart_by_its_arguments(table: TableBuilder, store: CountingStore) -> None:
    accepts = CommitFilter(data_changes_only=True, operations=("MERGE",))
    first = trigger(WaitCondition(after_version=1, commits=accepts, min_commits=2))
    path, kwargs = first.serialize()
    assert path == "delta_maintenance_airflow.triggers.commit.DeltaCommitTrigger"

    async def scenario() -> None:
        async with running(first.run()) as events:
            table.commit(MERGE)
            await polled(store)
            assert events == []
        again = DeltaCommitTrigger(**json.loads(json.dumps(kwargs)))
        assert again.serialize() == (path, kwargs)
        table.commit(MERGE)
        async with running(again.run()) as events:
            await eventually(lambda: len(events) == 1)
        assert events[0]["commits"] == 2

    run(scenario())


def test_a_deleted_table_ends_the_wait_with_a_remedy(
    table: TableBuilder, store: CountingStore
) -> None:
    async def scenario() -> None:
        async with running(trigger(WaitCondition(version=9)).run()) as events:
            await polled(store)
            store.delete_many([one.path for one in list(store.list_from("_delta_log"))])
            await eventually(lambda: len(events) == 1)
        assert (events[0]["status"], events[0]["error"]) == ("error", "NotADeltaTableError")
        assert "was moved" in events[0]["message"]

    run(scenario())


def test_lost_permission_ends_the_wait(table: TableBuilder, store: CountingStore) -> None:
    async def scenario() -> None:
        async with running(trigger(WaitCondition(version=9)).run()) as events:
            await polled(store)
            store.fails = StorageAccessError("AccessDenied", remedy="grant s3:ListBucket")
            await eventually(lambda: len(events) == 1)
        assert events[0]["error"] == "StorageAccessError"
        assert "grant s3:ListBucket" in events[0]["message"]

    run(scenario())


def test_throttling_ends_nothing(table: TableBuilder, store: CountingStore) -> None:
    async def scenario() -> None:
        async with running(trigger(WaitCondition(version=2)).run()) as events:
            await polled(store)
            store.fails = StorageError("SlowDown")
            await polled(store)
            store.fails = None
            table.commit(MERGE)
            await eventually(lambda: len(events) == 1)
        assert events[0]["status"] == "success"

    run(scenario())


def test_a_wrong_request_is_an_error_and_no_traceback(store: CountingStore) -> None:
    async def scenario() -> None:
        bad = DeltaCommitTrigger(table_uri="memory://lake/t", condition={"versoin": 1})
        async with running(bad.run()) as events:
            await eventually(lambda: len(events) == 1)
        assert (events[0]["status"], events[0]["error"]) == ("error", "InvalidRequestError")

    run(scenario())


def test_an_unknown_connection_is_an_error() -> None:
    async def scenario() -> None:
        asked = WaitCondition(version=1).to_json()
        lost = DeltaCommitTrigger(table_uri="s3://b/t", condition=asked, delta_conn_id="nowhere")
        async with running(lost.run()) as events:
            await eventually(lambda: len(events) == 1)
        assert events[0]["status"] == "error"
        assert "nowhere" in events[0]["message"]

    run(scenario())


def test_a_failing_store_is_polled_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(polling.asyncio, "sleep", sleep)

    async def scenario() -> None:
        pace = polling.Pace(30, "s3://lake/t")
        for _ in range(8):
            await pace.back_off()
        await pace.rest()
        await pace.rest()
        await pace.back_off()

    run(scenario())
    assert slept[:8] == [60, 120, 240, 480, 600, 600, 600, 600]
    assert 0 < slept[8] <= 30
    assert slept[9:] == [30, 60]


def test_tables_that_start_together_do_not_stay_together() -> None:
    firsts = {polling.Pace(30, f"s3://lake/{n}")._first for n in range(100)}
    assert len(firsts) == 100
    assert sum(first < 15 for first in firsts if first is not None) in range(30, 70)


def test_no_more_threads_than_the_pool_of_a_store_has() -> None:
    busy, most = set(), []

    def ask() -> None:
        busy.add(threading.get_ident())
        most.append(len(busy))
        threading.Event().wait(0.005)

    async def scenario() -> None:
        await asyncio.gather(*(polling.in_thread(f"s3://pooled/{n}", ask) for n in range(100)))

    run(scenario())
    assert max(most) <= polling._THREADS
    assert threading.main_thread().ident not in busy
