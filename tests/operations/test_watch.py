"""Conditions on a log: when they hold, what a poll costs, and what ends a wait in vain."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import (
    InvalidRequestError,
    NotADeltaTableError,
    StorageError,
    VersionNotFoundError,
)
from delta_maintenance.operations.position import Position
from delta_maintenance.operations.watch import (
    CommitCount,
    CommitFilter,
    LogWatch,
    Wait,
    WaitCondition,
    WaitProgress,
    current_properties,
)
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.storage.local import LocalStore
from tests.support.orchestrators.watching import MERGE, OPTIMIZE, WRITE, watched_table
from tests.support.stores.counting_store import CountingStore
from tests.support.suite.play import examples
from tests.support.tables.actions import add, commit_info, features, metadata, protocol
from tests.support.tables.table_builder import TableBuilder


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def table(store: CountingStore) -> TableBuilder:
    return watched_table(store)


def poll(wait: Wait, store: CountingStore, *, at_most: int = 2) -> WaitProgress:
    store.requests.clear()
    seen = wait.poll()
    assert len(store.requests) <= at_most, store.requests
    return seen


def polled_to_the_end(wait: Wait, store: CountingStore) -> WaitProgress:
    while (seen := poll(wait, store)).more:
        pass
    return seen


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (WaitCondition(version=9), {}),
        (WaitCondition(version=10), None),
        (WaitCondition(after_version=8), {"commits": 1}),
        (WaitCondition(after_version=9), None),
        (WaitCondition(after_version=6, min_commits=3), {"commits": 3}),
        (WaitCondition(after_version=6, min_commits=4), None),
        (WaitCondition(after_version=-1), {"commits": 10}),
        (WaitCondition(after_version=12), None),
        (WaitCondition(min_commits_since_checkpoint=5), {"checkpoint_version": 4, "commits": 5}),
        (WaitCondition(min_commits_since_checkpoint=6), None),
        (WaitCondition(min_commits_since_checkpoint=0), {"checkpoint_version": 4, "commits": 5}),
    ],
)
def test_a_condition_is_evaluated(
    table: TableBuilder,
    store: CountingStore,
    condition: WaitCondition,
    found: dict[str, Any] | None,
) -> None:
    assert WaitCondition.from_json(condition.to_json()) == condition
    seen = poll(Wait(store, condition), store)
    assert seen.done is (found is not None)
    assert not seen.more
    assert seen.version == 9
    if found is not None:
        assert seen.found() == {"table": store.root, "version": 9, **found}


def test_a_future_version_is_awaited_until_its_commit(
    table: TableBuilder, store: CountingStore
) -> None:
    wait = Wait(store, WaitCondition(after_version=11))
    for version, done in ((10, False), (11, False), (12, True)):
        assert not poll(wait, store).done
        assert table.commit([add("x")]) == version
        assert poll(wait, store).done is done


FILTERS = [
    (CommitFilter(data_changes_only=True), [OPTIMIZE, [metadata()]], MERGE),
    (CommitFilter(operations=("merge",)), [OPTIMIZE, WRITE, [add("e")]], MERGE),
    (CommitFilter(protocol_changes=True), [OPTIMIZE, WRITE], [features("v2Checkpoint")]),
    (
        CommitFilter(properties=("delta.appendOnly",)),
        [OPTIMIZE, [metadata(configuration={"delta.other": "1"})]],
        [metadata(configuration={"delta.appendOnly": "true", "delta.other": "1"})],
    ),
]


@pytest.mark.parametrize(("accepts", "passed_over", "taken"), FILTERS)
def test_only_such_commits_count_and_each_is_read_once(
    table: TableBuilder,
    store: CountingStore,
    accepts: CommitFilter,
    passed_over: list[Any],
    taken: Any,
) -> None:
    wait = Wait(store, WaitCondition(after_version=9, commits=accepts, min_commits=2))
    for lines in (*passed_over, taken, OPTIMIZE):
        table.commit(lines)
        assert not poll(wait, store).done
    # Of a property only another value is a change.
    table.commit([metadata()] if accepts.properties else taken)
    assert poll(wait, store).found()["commits"] == 2


def test_all_conditions_of_a_filter_must_hold(table: TableBuilder, store: CountingStore) -> None:
    accepts = CommitFilter(data_changes_only=True, operations=("OPTIMIZE",))
    wait = Wait(store, WaitCondition(after_version=9, commits=accepts))
    table.commit(OPTIMIZE)
    table.commit(MERGE)
    assert not wait.poll().done


def test_of_many_new_commits_the_newest_is_enough(
    table: TableBuilder, store: CountingStore
) -> None:
    accepts = CommitFilter(data_changes_only=True)
    wait = Wait(store, WaitCondition(after_version=9, commits=accepts))
    poll(wait, store)
    for _ in range(50):
        table.commit(MERGE)
    assert poll(wait, store).done
    assert store.requests[1:] == [f"read _delta_log/{commit_name(59)}"]


def test_a_backlog_of_maintenance_is_read_once_and_in_turns(
    table: TableBuilder, store: CountingStore
) -> None:
    accepts = CommitFilter(data_changes_only=True)
    wait = Wait(store, WaitCondition(after_version=9, commits=accepts))
    for _ in range(100):
        table.commit(OPTIMIZE)
    everything: list[str] = []
    while poll(wait, store).more:
        everything += store.requests
    everything += store.requests
    reads = [request for request in everything if request.startswith("read")]
    assert len(reads) == len(set(reads)) == 100
    assert len(everything) == 101
    poll(wait, store, at_most=1)


def test_a_long_commit_is_read_completely_only_if_its_beginning_is_inconclusive(
    table: TableBuilder, store: CountingStore
) -> None:
    moved = [add("x" * 100 + str(n), dataChange=False) for n in range(1000)]
    accepts = CommitFilter(data_changes_only=True)
    wait = Wait(store, WaitCondition(after_version=9, commits=accepts))
    table.commit([commit_info("WRITE"), add("first"), *moved])
    assert not (begun := poll(wait, store)).more and begun.done
    wait = Wait(store, WaitCondition(after_version=10, commits=accepts))
    table.commit([commit_info("OPTIMIZE"), *moved])
    assert poll(wait, store).more
    assert not polled_to_the_end(wait, store).done
    table.commit([commit_info("OPTIMIZE"), *moved, add("new")])
    assert poll(wait, store).more
    assert polled_to_the_end(wait, store).done


def test_a_deleted_unread_commit_counts(table: TableBuilder, store: CountingStore) -> None:
    accepts = CommitFilter(operations=("MERGE",))
    wait = Wait(store, WaitCondition(after_version=9, commits=accepts))
    table.commit(OPTIMIZE)
    table.commit(OPTIMIZE)
    store.delete(f"_delta_log/{commit_name(10)}")
    assert polled_to_the_end(wait, store).done


def test_properties_are_compared_with_their_earlier_values(
    table: TableBuilder, store: CountingStore
) -> None:
    version = table.commit([metadata(configuration={"delta.appendOnly": "true"})])
    assert current_properties(store.root, ("a",), version=-1) == {"a": None}
    known: dict[str, str | None] = {"delta.appendOnly": "true"}
    accepts = CommitFilter(properties=("delta.appendOnly",))
    wait = Wait(
        store, WaitCondition(after_version=version, commits=accepts, known_properties=known)
    )
    table.commit([metadata(configuration={"delta.appendOnly": "true", "new": "1"})])
    assert not wait.poll().done
    table.commit([metadata()])
    assert wait.poll().done


def test_changes_of_a_property_back_and_forth_are_two(
    table: TableBuilder, store: CountingStore
) -> None:
    accepts = CommitFilter(properties=("delta.appendOnly",))
    wait = Wait(store, WaitCondition(after_version=9, commits=accepts, min_commits=2))
    table.commit([metadata(configuration={"delta.appendOnly": "true"})])
    table.commit(WRITE)
    table.commit([metadata()])
    assert polled_to_the_end(wait, store).found()["commits"] == 2


def test_the_properties_of_a_version_are_those_that_it_had(tmp_path: Any) -> None:
    table = TableBuilder(LocalStore(tmp_path / "t"))
    table.commit([protocol(), metadata(configuration={"delta.appendOnly": "true"})])
    table.commit([metadata()])
    names = ("delta.appendOnly", "delta.other")
    uri = table.store.root
    assert current_properties(uri, names, version=0) == {
        "delta.appendOnly": "true",
        "delta.other": None,
    }
    assert current_properties(uri, names, version=1) == dict.fromkeys(names)
    with pytest.raises(VersionNotFoundError):
        current_properties(uri, names, version=7)


def test_a_deleted_table_ends_the_wait(table: TableBuilder, store: CountingStore) -> None:
    waits = [Wait(store, WaitCondition(version=99)), Wait(store, WaitCondition(after_version=9))]
    for wait in waits:
        wait.poll()
    store.delete_many([status.path for status in list(store.list_from("_delta_log"))])
    for wait in waits:
        with pytest.raises(NotADeltaTableError, match="the log no longer exists"):
            wait.poll()


def test_a_replaced_table_ends_the_wait_for_later_versions(
    table: TableBuilder, store: CountingStore
) -> None:
    wait = Wait(store, WaitCondition(after_version=9))
    wait.poll()
    store.delete_many([status.path for status in list(store.list_from("_delta_log"))])
    TableBuilder(store).commit([protocol(), metadata()])
    with pytest.raises(VersionNotFoundError, match="another table replaced this one"):
        wait.poll()


def test_a_failure_of_the_store_loses_nothing(table: TableBuilder, store: CountingStore) -> None:
    accepts = CommitFilter(data_changes_only=True)
    wait = Wait(store, WaitCondition(after_version=9, commits=accepts, min_commits=3))
    for lines in (MERGE, OPTIMIZE, MERGE, MERGE):
        table.commit(lines)
        store.fails = StorageError("down", remedy="wait")
        with pytest.raises(StorageError):
            wait.poll()
        store.fails = None
        seen = wait.poll()
    assert seen.done and seen.found()["commits"] == 3


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"version": 1, "after_version": 1},
        {"version": 1, "commits": CommitFilter(data_changes_only=True)},
        {"after_version": 1, "min_commits": 0},
    ],
)
def test_impossible_conditions_are_refused(fields: Any) -> None:
    with pytest.raises(InvalidRequestError):
        WaitCondition(**fields)


LONG = [commit_info("UNHEARD OF"), *(add("x" * 700 + str(n), dataChange=False) for n in range(100))]
KINDS = {
    "data": MERGE,
    "data, said late": [*LONG, add("new")],
    "optimize": OPTIMIZE,
    "no data, said late": LONG,
    "nothing": [commit_info("SET TBLPROPERTIES")],
}
DATA = (KINDS["data"], KINDS["data, said late"])


@settings(max_examples=examples(60), deadline=None)
@example(steps=["data", "data", "optimize", "clean"], enough=3, unread_is_stored=True)
@example(
    steps=["data", "no data, said late", "turn", "optimize", "turn", "restart", "turn"],
    enough=1,
    unread_is_stored=True,
)
@given(
    steps=st.lists(
        st.sampled_from([*KINDS, "poll", "turn", "restart", "fail", "clean"]), max_size=40
    ),
    enough=st.integers(1, 4),
    unread_is_stored=st.booleans(),
)
def test_every_commit_is_counted_exactly_once(
    steps: list[str], enough: int, unread_is_stored: bool
) -> None:
    """A watcher that may be restarted at any moment, against a count of what was committed.

    Dagster stores a position after each turn, and Airflow one without unread commits.
    """
    store = CountingStore()
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    accepts = CommitFilter(data_changes_only=True)
    stored = Position(version=0, announced=0)
    watch, count = LogWatch(store), CommitCount(accepts, stored)
    events: list[tuple[int, int]] = []
    cleaned: set[int] = set()
    for step in itertools.chain(steps, ["poll"]):
        if step in KINDS:
            table.commit(KINDS[step])
        elif step == "clean":
            for version in set(range(table.version)) - cleaned:
                store.delete(f"_delta_log/{commit_name(version)}")
                cleaned.add(version)
        elif step == "restart":
            # Through JSON, as orchestrators store it.
            known = asdict(stored) | {"unread": tuple(map(tuple, asdict(stored)["unread"]))}
            stored = Position(**known)
            watch, count = LogWatch(store), CommitCount(accepts, stored)
        elif step == "fail":
            newest = watch.poll().version
            store.fails = StorageError("down")
            with suppress(StorageError):
                count.count(watch, newest=newest, enough=enough)
            store.fails = None
        else:
            turns = itertools.repeat(True) if step == "poll" else [True]
            for _ in turns:
                if count.count(watch, newest=watch.poll().version, enough=enough):
                    assert not count.position.unread
                    break
            position = count.position
            if position.counted >= enough:
                events.append((position.announced, position.version))
                count.position = position = position.after_event()
            if unread_is_stored or not position.unread:
                stored = position
    position = count.position
    data = [version for version, lines in table.commits.items() if lines in DATA]
    for first, last in events:
        matching = sum(first < version <= last for version in data)
        assert matching + sum(first < version <= last for version in cleaned) >= enough
    # No commit is announced twice, and none is left out.
    assert [first for first, _ in events] == [0, *(last for _, last in events)][: len(events)]
    since = events[-1][1] if events else 0
    assert (position.announced, position.version, position.unread) == (since, table.version, ())
    least = sum(version > since for version in data)
    assert least <= position.counted < enough
    assert position.counted <= least + sum(version > since for version in cleaned)
