"""The commit sensor: what it waits for, what a poke costs, what fails it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from delta_maintenance.errors import StorageError
from delta_maintenance.storage.base import FileStatus
from delta_maintenance.storage.memory import MemoryStore
from delta_maintenance.table.table import Table
from delta_maintenance.testing.actions import add, metadata, protocol
from delta_maintenance.testing.table_builder import TableBuilder
from delta_maintenance_airflow.hooks import DeltaHook
from delta_maintenance_airflow.sensors import DeltaCommitSensor


class CountingStore(MemoryStore):
    """Counts what a real store would be asked over the network."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.fails = False

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        self._count(f"list {directory} from {start or 'the start'}")
        return super().list_from(directory, start)

    def stat(self, path: str) -> FileStatus | None:
        self._count(f"stat {path}")
        return super().stat(path)

    def read(self, path: str) -> bytes:
        self._count(f"read {path}")
        return super().read(path)

    def open(self, path: str) -> BinaryIO:
        self._count(f"open {path}")
        return super().open(path)

    def _count(self, request: str) -> None:
        if self.fails:
            raise StorageError("the store is down", remedy="wait")
        self.requests.append(request)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    store = CountingStore()
    monkeypatch.setattr(DeltaHook, "open_table", lambda self, uri: Table(store))
    return store


@pytest.fixture
def table(store: CountingStore) -> TableBuilder:
    """Version 9, a classic checkpoint of version 4 and its hint."""
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    for number in range(9):
        table.commit([add(f"{number}.parquet")])
    table.checkpoint(4)
    table.hint(4)
    store.requests.clear()
    return table


def sensor(**arguments: Any) -> DeltaCommitSensor:
    return DeltaCommitSensor(task_id="wait", table_uri="memory:/t", **arguments)


@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        ({"version": 9}, True),
        ({"version": "9"}, True),
        ({"version": 10}, False),
        ({"after_version": 8}, True),
        ({"after_version": 9}, False),
        ({"after_version": "6", "min_commits": "3"}, True),
        ({"after_version": 6, "min_commits": 4}, False),
        ({"after_version": -1}, True),
        ({"min_commits_since_checkpoint": 5}, True),
        ({"min_commits_since_checkpoint": "6"}, False),
        ({"min_commits_since_checkpoint": 0}, True),
    ],
)
def test_a_poke_answers_with_two_requests_at_most(
    table: TableBuilder, store: CountingStore, arguments: dict[str, Any], done: bool
) -> None:
    answer = sensor(**arguments).poke({})
    assert answer.is_done is done
    assert answer.xcom_value["version"] == 9
    assert len(store.requests) <= 2, store.requests


def test_a_poke_lists_no_more_of_the_log_than_it_must(
    table: TableBuilder, store: CountingStore
) -> None:
    sensor(after_version=7).poke({})
    assert store.requests == ["list _delta_log from 00000000000000000007"]
    store.requests.clear()
    sensor(min_commits_since_checkpoint=1).poke({})
    assert store.requests == [
        "read _delta_log/_last_checkpoint",
        "list _delta_log from 00000000000000000004",
    ]


def test_the_value_for_xcom_is_small_and_flat(table: TableBuilder, store: CountingStore) -> None:
    assert sensor(min_commits_since_checkpoint=1).execute({}) == {
        "table": store.root,
        "version": 9,
        "checkpoint_version": 4,
        "commits": 5,
    }


def test_without_a_checkpoint_every_commit_counts(store: CountingStore) -> None:
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    table.commit([add("a")])
    assert sensor(min_commits_since_checkpoint=2).poke({}).xcom_value == {
        "table": store.root,
        "version": 1,
        "checkpoint_version": None,
        "commits": 2,
    }


def test_soft_fail_skips_a_wait_in_vain(table: TableBuilder) -> None:
    with pytest.raises(AirflowSensorTimeout):
        sensor(version=10, timeout=0, poke_interval=0).execute({})
    with pytest.raises(AirflowSkipException):
        sensor(version=10, timeout=0, poke_interval=0, soft_fail=True).execute({})


@pytest.mark.parametrize("soft_fail", [False, True])
def test_no_table_at_the_address_fails_at_once_even_with_soft_fail(
    store: CountingStore, soft_fail: bool
) -> None:
    with pytest.raises(AirflowFailException, match="_delta_log"):
        sensor(version=0, soft_fail=soft_fail).execute({})


def test_a_store_that_is_down_is_left_to_the_retries(
    table: TableBuilder, store: CountingStore
) -> None:
    store.fails = True
    with pytest.raises(StorageError, match="the store is down"):
        sensor(version=0).execute({})


@pytest.mark.parametrize("arguments", [{}, {"version": 1, "after_version": 1}])
def test_exactly_one_thing_is_waited_for(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        sensor(**arguments)
