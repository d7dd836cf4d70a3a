"""The watcher: whom it wakes, what it remembers, what it costs, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from delta_maintenance.errors import StorageAccessError, StorageError
from delta_maintenance.operations.watch import LogWatch
from delta_maintenance.storage.core import FileStatus
from delta_maintenance_airflow.compat import asset_states
from delta_maintenance_airflow.hooks import DeltaHook
from delta_maintenance_airflow.triggers import DeltaCommitEventTrigger, polling
from delta_maintenance_airflow.triggers.polling import TableStream
from tests.support.orchestrators.airflow_versions import since_3_3
from tests.support.orchestrators.watching import (
    MERGE,
    OPTIMIZE,
    WRITE,
    State,
    eventually,
    run,
    running,
)
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import add, commit_info, features, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

QUICK = 0.01


class Opened:
    """The store of the table, and how often it was opened."""

    def __init__(self, store: CountingStore) -> None:
        self.store = store
        self.times = 0


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaCommitEventTrigger, "settling_seconds", 0.0)
    monkeypatch.setattr(polling, "_IN_TROUBLE", QUICK)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def opened(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> Opened:
    opened = Opened(store)

    async def aopen_watched(self: DeltaHook, uri: str) -> CountingStore:
        opened.times += 1
        return opened.store

    monkeypatch.setattr(DeltaHook, "aopen_watched", aopen_watched)
    return opened


@pytest.fixture
def table(store: CountingStore, opened: Opened) -> TableBuilder:
    """Version 3."""
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    for _ in range(3):
        table.commit(WRITE)
    return table


def watcher(state: State | None = None, **arguments: Any) -> DeltaCommitEventTrigger:
    trigger = DeltaCommitEventTrigger(
        **{"table_uri": "memory://lake/t", "poll_interval": QUICK, **arguments}
    )
    if state is not None:
        trigger.asset_state_store = SimpleNamespace(_by_name={"asset": state})
    return trigger


def changed(first: int, last: int) -> dict[str, Any]:
    return {
        "status": "changed",
        "table": "memory://lake/t",
        "from_version": first,
        "to_version": last,
    }


async def polls(store: CountingStore, count: int = 2) -> None:
    """Waits for this number of complete polls."""
    seen = len([request for request in store.requests if request.startswith("list")])
    await eventually(
        lambda: len([one for one in store.requests if one.startswith("list")]) > seen + count
    )


def test_only_new_commits_that_change_data_send_an_event(
    table: TableBuilder, store: CountingStore
) -> None:
    async def scenario() -> None:
        async with running(watcher(State()).run()) as events:
            await polls(store)
            assert events == []
            table.commit(MERGE)
            await eventually(lambda: len(events) == 1)
            table.commit(WRITE)
            await eventually(lambda: len(events) == 2)
            await polls(store)
        assert events == [changed(3, 4), changed(4, 5)]

    run(scenario())


MAINTENANCE = {
    "optimize": OPTIMIZE,
    "vacuum start": [commit_info("VACUUM START")],
    "vacuum end": [commit_info("VACUUM END")],
    "properties": [commit_info("SET TBLPROPERTIES"), metadata(configuration={"a": "b"})],
    "protocol": [commit_info("UPGRADE PROTOCOL"), features("v2Checkpoint")],
    "row ids": [commit_info("ROW TRACKING BACKFILL"), add("a", dataChange=False)],
    "unnamed": [remove("a", dataChange=False), add("b", dataChange=False)],
}


@pytest.mark.parametrize("lines", MAINTENANCE.values(), ids=MAINTENANCE)
def test_maintenance_commits_send_no_event(
    table: TableBuilder, store: CountingStore, lines: list[Any]
) -> None:
    async def scenario() -> None:
        state = State()
        async with running(watcher(state).run()) as events:
            await polls(store)
            table.commit(lines)
            await polls(store, 3)
            assert events == []
            table.commit(WRITE)
            await eventually(lambda: len(events) == 1)
        assert events == [changed(3, 5)]

    run(scenario())


def test_a_restart_neither_misses_nor_repeats(table: TableBuilder, store: CountingStore) -> None:
    async def scenario() -> None:
        state = State()
        async with running(watcher(state).run()) as events:
            await polls(store)
            table.commit(WRITE)
            await polls(store, 3)
            assert events == [changed(3, 4)]
        table.commit(OPTIMIZE)
        table.commit(WRITE)
        table.commit(OPTIMIZE)
        async with running(watcher(state).run()) as events:
            await polls(store, 3)
            assert events == [changed(4, 7)]
        async with running(watcher(state).run()) as events:
            await polls(store, 3)
            assert events == []

    run(scenario())


def test_an_event_that_the_triggerer_may_have_lost_is_sent_again(
    table: TableBuilder, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeltaCommitEventTrigger, "settling_seconds", 3600.0)

    async def scenario() -> None:
        state = State()
        for _ in range(2):
            async with running(watcher(state, after_version=2).run()) as events:
                await eventually(lambda: len(events) == 1)
            assert events == [changed(2, 3)]

    run(scenario())


def test_counted_commits_are_cached(table: TableBuilder, store: CountingStore) -> None:
    async def scenario() -> None:
        state = State()
        async with running(watcher(state, min_commits=3).run()) as events:
            await polls(store)
            table.commit(WRITE)
            table.commit(OPTIMIZE)
            table.commit(WRITE)
            await polls(store, 3)
            assert events == []
        store.requests.clear()
        table.commit(WRITE)
        async with running(watcher(state, min_commits=3).run()) as events:
            await polls(store, 3)
        assert events == [changed(3, 7)]
        assert len([request for request in store.requests if ".json" in request]) == 1

    run(scenario())


def test_only_the_given_operations_send_events(table: TableBuilder, store: CountingStore) -> None:
    async def scenario() -> None:
        async with running(watcher(State(), operations=["merge"]).run()) as events:
            await polls(store)
            table.commit(WRITE)
            await polls(store, 3)
            assert events == []
            table.commit(MERGE)
            await eventually(lambda: events == [changed(3, 5)])

    run(scenario())


def test_events_are_sent_even_if_the_state_cannot_be_written(
    table: TableBuilder, store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        state = State()
        state.fails = True
        async with running(watcher(state).run()) as events:
            await polls(store)
            table.commit(WRITE)
            await eventually(lambda: events == [changed(3, 4)])

    run(scenario())


@since_3_3
def test_without_a_state_it_begins_at_the_newest_version(
    table: TableBuilder, store: CountingStore
) -> None:
    trigger = watcher()
    # As in Airflow 3.2.
    del trigger.asset_state_store

    async def scenario() -> None:
        async with running(trigger.run()) as events:
            await polls(store)
            table.commit(WRITE)
            await eventually(lambda: events == [changed(3, 4)])

    run(scenario())


def test_a_poll_is_one_request_and_one_more_for_something_new(
    table: TableBuilder, store: CountingStore, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, poll = threading.Lock(), LogWatch.poll

    def looked(self: LogWatch) -> Any:
        with turn:
            return poll(self)

    monkeypatch.setattr(LogWatch, "poll", looked)

    async def scenario() -> None:
        async with running(watcher(State()).run()) as events:
            await polls(store)
            store.requests.clear()
            await polls(store, 5)
            assert all(request.startswith("list") for request in store.requests)
            store.requests.clear()
            # No poll takes place between these commits.
            with turn:
                for _ in range(20):
                    table.commit(WRITE)
            await eventually(lambda: len(events) == 1 and events[-1]["to_version"] == 23)
            reads = [request for request in store.requests if request.startswith("read")]
            assert len(reads) <= 2

    run(scenario())
    assert opened.times == 1


def test_work_beyond_the_requests_of_a_poll_is_left_to_the_next(
    table: TableBuilder, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    each: list[int] = []
    ask = TableStream.ask

    async def counted(self: TableStream, *question: Any) -> Any:
        before = len(store.requests)
        answer = await ask(self, *question)
        each.append(len(store.requests) - before)
        return answer

    monkeypatch.setattr(TableStream, "ask", counted)
    table.commit(WRITE)
    for _ in range(9):
        table.commit(OPTIMIZE)

    async def scenario() -> None:
        async with running(watcher(State(), after_version=3, poll_interval=60.0).run()) as events:
            # Long before the interval is over.
            await eventually(lambda: events == [changed(3, 13)])

    run(scenario())
    reads = [request for request in store.requests if request.endswith(".json")]
    assert len(reads) == len(set(reads)) == 10
    assert max(each) == 2


def test_watchers_of_a_table_share_one_poll_loop_and_each_commit_is_read_once(
    table: TableBuilder, store: CountingStore, opened: Opened
) -> None:
    shared_stream = pytest.importorskip("airflow.triggers.shared_stream")

    async def scenario() -> None:
        manager = shared_stream.SharedStreamManager()
        triggers = [watcher(State(), min_commits=n, after_version=3) for n in (1, 2, 3)]
        assert len({trigger.shared_stream_key() for trigger in triggers}) == 1
        streams = [
            trigger.filter_shared_stream(
                manager.subscribe(
                    trigger_id=number, trigger=trigger, key=trigger.shared_stream_key()
                )
            )
            for number, trigger in enumerate(triggers)
        ]
        async with (
            running(streams[0]) as first,
            running(streams[1]) as second,
            running(streams[2]) as third,
        ):
            await polls(store, 4)
            store.requests.clear()
            for lines in (WRITE, OPTIMIZE, WRITE, WRITE):
                table.commit(lines)
            await eventually(lambda: bool(first and second and third))
            await polls(store, 3)
        await manager.stop_all()
        assert third == [changed(3, 7)]
        assert first[0]["from_version"] == 3 and first[-1]["to_version"] == 7
        assert second[0]["from_version"] == 3
        reads = [request for request in store.requests if request.startswith("read")]
        assert len(reads) == len(set(reads)) <= 4

    run(scenario())
    assert opened.times == 1


def test_a_hanging_store_does_not_block_the_event_loop(
    table: TableBuilder, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    answers: list[bool] = []

    def hanging(directory: str, start: str = "") -> Iterator[FileStatus]:
        answers.append(gate.wait(60))
        return CountingStore.list_from(store, directory, start)

    monkeypatch.setattr(store, "list_from", hanging)

    async def scenario() -> None:
        async with running(watcher(State()).run()):
            await asyncio.sleep(0.1)
            # Only a loop that goes on gets here while the store hangs.
            gate.set()
            await eventually(lambda: len(answers) > 1)

    run(scenario())
    assert all(answers)


def test_throttling_is_retried_silently(
    table: TableBuilder, store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(watcher(State()).run()) as events:
            await polls(store)
            store.fails = StorageError(
                "S3 failed (SlowDown)", remedy="run again when the store is available"
            )
            await eventually(lambda: "SlowDown" in caplog.text)
            table.commit(WRITE)
            store.fails = None
            await eventually(lambda: events == [changed(3, 4)])

    run(scenario())


def test_a_lost_permission_is_reported_once_with_its_remedy(
    table: TableBuilder, store: CountingStore, opened: Opened
) -> None:
    async def scenario() -> None:
        state = State()
        denied = StorageAccessError(
            "S3 rejects the request (AccessDenied)", remedy="grant s3:ListBucket"
        )
        async with running(watcher(state).run()) as events:
            await polls(store)
            store.fails = denied
            await eventually(lambda: len(events) == 1)
            # Polled immediately and again, because the current options of the connection may help.
            await eventually(lambda: opened.times > 3)
            assert len(events) == 1
        assert events[0]["status"] == "error"
        assert events[0]["error"] == "StorageAccessError"
        assert "grant s3:ListBucket" in events[0]["message"]
        async with running(watcher(state).run()) as events:
            opens = opened.times
            await eventually(lambda: opened.times > opens + 2)
            assert events == []
            table.commit(WRITE)
            store.fails = None
            await eventually(lambda: events == [changed(3, 4)])

    run(scenario())


def test_replaced_keys_are_used_silently(
    table: TableBuilder, store: CountingStore, opened: Opened
) -> None:
    async def scenario() -> None:
        async with running(watcher(State()).run()) as events:
            await polls(store)
            fresh = CountingStore()
            fresh._files, fresh.address = store._files, store.address
            opened.store, store.fails = fresh, StorageAccessError("expired")
            table.store = fresh
            table.commit(WRITE)
            await eventually(lambda: events == [changed(3, 4)])

    run(scenario())


def test_a_deleted_table_is_reported_once_and_its_successor_sends_events(
    table: TableBuilder, store: CountingStore
) -> None:
    async def scenario() -> None:
        async with running(watcher(State()).run()) as events:
            await polls(store)
            store.delete_many([one.path for one in list(store.list_from("_delta_log"))])
            await eventually(lambda: len(events) == 1)
            await polls(store, 5)
            assert len(events) == 1
            assert events[0]["error"] == "NotADeltaTableError"
            assert "give the new address if the table was moved" in events[0]["message"]
            fresh = TableBuilder(store)
            fresh.commit([protocol(), metadata(), *WRITE])
            await eventually(lambda: events[1:] == [changed(-1, 0)])

    run(scenario())


def test_a_wrong_address_is_reported() -> None:
    async def scenario() -> None:
        async with running(watcher(State(), table_uri="nothing://lake/t").run()) as events:
            await eventually(lambda: len(events) == 1)
        assert events[0]["status"] == "error"
        assert "no store supports" in events[0]["message"]

    run(scenario())


@since_3_3
def test_the_state_of_every_asset_of_a_trigger_is_found() -> None:
    context = pytest.importorskip("airflow.sdk.execution_time.context")
    accessors = context.AssetStateStoreAccessors(inlets=[Asset("a"), Asset("b")])
    trigger = watcher()
    trigger.asset_state_store = accessors
    assert set(asset_states(trigger)) == {accessors[Asset("a")], accessors[Asset("b")]}


def test_of_two_assets_the_older_position_counts(table: TableBuilder, store: CountingStore) -> None:
    async def scenario() -> None:
        fresh, behind, ahead = State(), State(), State()
        async with running(watcher(behind).run()):
            await polls(store)
        table.commit(WRITE)
        async with running(watcher(ahead).run()):
            await polls(store)
        trigger = watcher()
        states = {"fresh": fresh, "ahead": ahead, "behind": behind}
        trigger.asset_state_store = SimpleNamespace(_by_name=states)
        async with running(trigger.run()) as events:
            await eventually(lambda: events == [changed(3, 4)])
            await polls(store, 3)
        assert ahead.values == behind.values == fresh.values != {}

    run(scenario())
