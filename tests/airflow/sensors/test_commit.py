"""The commit sensor: what it waits for, what a poke costs, what fails it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG

from delta_maintenance.errors import StorageError
from delta_maintenance.operations import watch
from delta_maintenance.operations.watch import CommitFilter, WaitCondition
from delta_maintenance_airflow.hooks import DeltaHook
from delta_maintenance_airflow.sensors import DeltaCommitSensor
from tests.support.orchestrators.airflow_versions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from tests.support.orchestrators.watching import watched_table
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import add, commit_info, metadata, protocol
from tests.support.tables.table_builder import TableBuilder


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    store = CountingStore()
    monkeypatch.setattr(DeltaHook, "open_watched", lambda self, uri: store)
    return store


@pytest.fixture
def table(store: CountingStore) -> TableBuilder:
    return watched_table(store)


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


def test_a_poke_lists_only_the_end_of_the_log(table: TableBuilder, store: CountingStore) -> None:
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


def test_soft_fail_skips_after_a_timeout(table: TableBuilder) -> None:
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


def test_an_unavailable_store_is_retried(table: TableBuilder, store: CountingStore) -> None:
    store.fails = StorageError("the store is down", remedy="wait")
    with pytest.raises(StorageError, match="the store is down"):
        sensor(version=0).execute({})


@pytest.mark.parametrize("arguments", [{}, {"version": 1, "after_version": 1}])
def test_exactly_one_condition_is_required(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        sensor(**arguments)


def test_a_sensor_that_need_not_wait_is_not_deferred(
    table: TableBuilder, store: CountingStore
) -> None:
    found = sensor(after_version="8", deferrable=True).execute({})
    assert found == {"table": store.root, "version": 9, "commits": 1}


def test_a_deferred_sensor_waits_in_the_triggerer(
    table: TableBuilder, store: CountingStore
) -> None:
    waiting = sensor(
        after_version="9",
        min_commits="2",
        commits={"operations": "merge, WRITE", "data_changes_only": "True"},
        deferrable=True,
        poke_interval=7,
        timeout=600,
        delta_conn_id=None,
    )
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute({})
    path, kwargs = deferred.value.trigger.serialize()
    assert kwargs == {
        "table_uri": "memory:/t",
        "delta_conn_id": None,
        "poll_interval": 7,
        "condition": WaitCondition(
            after_version=9,
            min_commits=2,
            commits=CommitFilter(data_changes_only=True, operations=("merge", "WRITE")),
        ).to_json(),
    }
    assert deferred.value.timeout.total_seconds() == 600
    assert deferred.value.method_name == "execute_complete"
    event = {"status": "success", "table": store.root, "version": 11, "commits": 2}
    assert waiting.resume_execution("execute_complete", {"event": event}, {}) == {
        "table": store.root,
        "version": 11,
        "commits": 2,
    }


@pytest.mark.parametrize("soft_fail", [False, True])
def test_an_unwatchable_table_fails_a_deferred_sensor_even_with_soft_fail(
    table: TableBuilder, soft_fail: bool
) -> None:
    event = {
        "status": "error",
        "error": "NotADeltaTableError",
        "message": "the log no longer exists",
    }
    with pytest.raises(AirflowFailException, match="the log no longer exists"):
        sensor(version=99, deferrable=True, soft_fail=soft_fail).resume_execution(
            "execute_complete", {"event": event}, {}
        )


def test_a_deferred_timeout_is_skipped_by_soft_fail() -> None:
    timeout = {"error": "Trigger timeout"}
    with pytest.raises(AirflowSensorTimeout):
        sensor(version=99, deferrable=True).resume_execution("__fail__", timeout, {})
    with pytest.raises(AirflowSkipException):
        sensor(version=99, deferrable=True, soft_fail=True).resume_execution(
            "__fail__", timeout, {}
        )


def test_a_poke_continues_where_the_last_one_ended(
    table: TableBuilder, store: CountingStore
) -> None:
    waiting = sensor(after_version=9, commits={"data_changes_only": True})
    assert not waiting.poke({}).is_done
    table.commit([commit_info("OPTIMIZE"), add("x", dataChange=False)])
    assert not waiting.poke({}).is_done
    store.requests.clear()
    assert not waiting.poke({}).is_done
    assert store.requests == ["list _delta_log from 00000000000000000010"]
    table.commit([add("y")])
    assert waiting.poke({}).is_done


def test_changed_properties_are_compared_with_earlier_values(
    table: TableBuilder, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def properties(uri: str, names: tuple[str, ...], **_: Any) -> dict[str, str | None]:
        return dict.fromkeys(names)

    monkeypatch.setattr(watch, "current_properties", properties)
    names = "delta.appendOnly,delta.logRetentionDuration"
    waiting = sensor(after_version=9, commits={"properties": names})
    table.commit([metadata(configuration={"delta.other": "1"})])
    assert not waiting.poke({}).is_done
    table.commit([metadata(configuration={"delta.appendOnly": "true"})])
    assert waiting.poke({}).is_done


def test_filters_require_after_version(table: TableBuilder) -> None:
    with pytest.raises(AirflowFailException, match="give after_version"):
        sensor(version=1, commits={"data_changes_only": True}).execute({})


def test_an_unknown_condition_is_refused() -> None:
    with pytest.raises(ValueError, match="commits has no operation; its keys are data_changes_on"):
        sensor(after_version=1, commits={"operation": "MERGE"})


def test_the_configuration_of_airflow_decides_deferral(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sensor(version=1).deferrable is False
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert sensor(version=1).deferrable is True
    assert sensor(version=1, deferrable=False).deferrable is False


@pytest.mark.airflow
@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
def test_a_deferred_task_resumes_after_the_commit(
    run_dag: Callable[..., Any], classic_table: TableBuilder
) -> None:
    with DAG("deferred_wait", schedule=None) as dag:
        DeltaCommitSensor(
            task_id="wait",
            table_uri=classic_table.store.root,
            after_version=1,
            commits={"data_changes_only": True},
            deferrable=True,
            poke_interval=0.2,
            timeout=500,
        )
    later = threading.Timer(3, lambda: classic_table.commit([add("late")]))
    later.start()
    dag_run = run_dag(dag)
    later.join()
    found = dag_run.get_task_instance("wait").xcom_pull("wait")
    assert found == {"table": classic_table.store.root, "version": 2, "commits": 1}
