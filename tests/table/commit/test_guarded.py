"""Commits beside Delta Spark on S3: the quiet window, the copy and the mark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.address import Address
from delta_maintenance.clock import instant
from delta_maintenance.errors import CommitUnknownError, RefusedError, StorageError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.commit.guarded import guarded_commits
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.read.segment import list_log
from tests.support.logs.beside_spark import MINUTE, SPARK, WINDOW, SteppedStore, quiet_table
from tests.support.logs.transactions import append, commit
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder


@pytest.fixture
def store() -> SteppedStore:
    return quiet_table()[1]


@pytest.fixture
def table(store: SteppedStore) -> TableBuilder:
    return TableBuilder(store)


def put_of(version: int) -> str:
    return f"put _delta_log/{version:020d}.json"


def test_a_commit_after_a_quiet_window_is_copied_first_and_marked_afterwards(
    table: TableBuilder, store: SteppedStore
) -> None:
    def requests_of(**writers: Any) -> list[str]:
        txn = append(table, f"n{store.clock_ms}", **writers)
        store.requests.clear()
        assert isinstance(commit(txn), Landed)
        store.clock_ms += 30 * MINUTE
        return [request.rpartition("_guarded")[2].split(".")[-1] for request in store.requests]

    plain = requests_of(other_writers="conditional_put", checksum=False)
    assert plain == ["tmp", "json", "list _delta_log"]
    guarded = requests_of(**SPARK)
    assert guarded == ["tmp", "copy", "list _delta_log", "json", "landed", "list _delta_log"]
    (guard,) = guarded_commits(list_log(store).guarded)
    assert guard.version == 2 and guard.mark is not None
    assert store.read(guard.copy.path) == table.read(f"{2:020d}.json")


@pytest.mark.parametrize("age", [timedelta(), timedelta(minutes=9, seconds=59)])
def test_a_commit_within_the_window_is_refused_and_leaves_nothing(
    table: TableBuilder, store: SteppedStore, age: timedelta
) -> None:
    store.spark_commits(log.add("c"))
    store.clock_ms += age // timedelta(milliseconds=1)
    with pytest.raises(RefusedError, match=r"version 1 .* within the quiet window") as refused:
        commit(append(table, **SPARK))
    assert "run again after" in str(refused.value)
    assert store.names() == []
    store.clock_ms += (WINDOW - age) // timedelta(milliseconds=1)
    assert isinstance(commit(append(table, **SPARK)), Landed)


def test_the_window_is_looked_at_again_directly_before_the_put(
    table: TableBuilder, store: SteppedStore
) -> None:
    txn = append(table, **SPARK)
    store.spark_commits(log.add("c"))
    with pytest.raises(RefusedError, match="within the quiet window"):
        commit(txn)
    assert store.names() == []


def test_a_lost_race_is_looked_at_again_by_the_next_attempt(
    table: TableBuilder, store: SteppedStore
) -> None:
    txn = append(table, **SPARK)

    def race(request: str) -> None:
        if request == put_of(1):
            store.before = lambda request: None
            store.spark_commits(log.add("c"))

    store.before = race
    with pytest.raises(RefusedError, match="within the quiet window"):
        commit(txn)
    # It is uncertain for others whether the first attempt was ever in the log.
    assert store.names() == ["copy"]


def test_own_commits_do_not_end_the_quiet(table: TableBuilder, store: SteppedStore) -> None:
    for number in range(3):
        assert isinstance(commit(append(table, f"n{number}", **SPARK)), Landed)
        store.clock_ms += 1000
    store.spark_commits(log.add("c"))
    with pytest.raises(RefusedError, match="version 4"):
        commit(append(table, "n3", **SPARK))


@pytest.mark.parametrize("later_ms", [0, 1000])
def test_nothing_is_committed_on_top_of_an_own_commit_that_was_overwritten(
    table: TableBuilder, store: SteppedStore, later_ms: int
) -> None:
    assert isinstance(commit(append(table, "n1", **SPARK)), Landed)
    txn = append(table, "n2", **SPARK)
    store.clock_ms += later_ms
    path = f"_delta_log/{1:020d}.json"
    store.put(path, store.read(path).replace(b"n1", b"m1"))
    with pytest.raises(RefusedError, match="was overwritten"):
        commit(txn)
    assert MemoryStore.stat(store, f"_delta_log/{2:020d}.json") is None


def test_the_window_is_measured_by_the_clock_of_the_store(
    table: TableBuilder, store: SteppedStore
) -> None:
    days = timedelta(days=3)
    for wrong in (-days, days):
        now = instant(store.clock_ms) + wrong
        store.spark_commits(log.add(f"c{wrong.days}"))
        with pytest.raises(RefusedError, match="within the quiet window"):
            commit(append(table, now=lambda now=now: now, **SPARK))
        store.clock_ms += 10 * MINUTE
        outcome = commit(append(table, f"n{wrong.days}", now=lambda now=now: now, **SPARK))
        assert isinstance(outcome, Landed)


def test_a_mark_that_cannot_be_written_leaves_the_commit_in_doubt(
    table: TableBuilder, store: SteppedStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: str) -> None:
        if request.endswith(".landed"):
            raise StorageError("no answer")

    txn = append(table, **SPARK)
    store.before = fail
    assert isinstance(commit(txn), Landed)
    assert "may have no mark" in caplog.text
    assert store.names() == ["copy"]


@pytest.mark.parametrize("file", ["copy", "landed"])
def test_a_lost_answer_about_the_copy_or_the_mark_leaves_the_outcome_known(
    table: TableBuilder, store: SteppedStore, file: str
) -> None:
    def lose_answer(request: str) -> None:
        if request.endswith(f".{file}"):
            MemoryStore.put_if_absent(store, request.removeprefix("put "), b"")
            raise CommitUnknownError("no answer")

    txn = append(table, **SPARK)
    store.before = lose_answer
    assert isinstance(commit(txn), Landed)
    assert store.names() == ["copy", "landed"]


def test_other_stores_and_writers_are_not_guarded(table: TableBuilder, store: SteppedStore) -> None:
    store.spark_commits(log.add("c"))
    quiet = {"quiet": WINDOW}
    for others in ("conditional_put", "none"):
        assert isinstance(commit(append(table, others, other_writers=others, **quiet)), Landed)
    store.address = Address.parse("memory:")
    assert isinstance(commit(append(table, "n", **SPARK)), Landed)
    assert store.names() == []
