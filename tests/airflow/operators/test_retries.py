"""Every operator in DagRuns of its own kind: done, nothing to do, plan, refusal, retry, clear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from delta_maintenance.errors import CommitConflictError, StorageError
from delta_maintenance.operations import set_properties
from delta_maintenance.operations.core import Prepared
from delta_maintenance_airflow.operators import DeltaSetPropertiesOperator
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator
from tests.support.orchestrators.operator_cases import BY_VERB, CASES, Case
from tests.support.orchestrators.operator_runs import dag_of, each, task
from tests.support.tables.overdue_tables import fingerprint, overdue_table
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.usefixtures("spark_job")
# Caused by the libraries of Airflow.
HTTPX = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")


def tables(root: Path) -> dict[str, TableBuilder]:
    return {case.verb: overdue_table(root / case.verb) for case in CASES}


def versions(root: Path) -> dict[str, int]:
    return {verb: TableBuilder(root / verb).open().latest_version() for verb in BY_VERB}


def outcomes(run: Any) -> dict[str, dict[str, Any]]:
    """Returns the XCom value of every task, by its verb."""
    return {
        ti.task_id.replace("_", "-"): ti.xcom_pull(ti.task_id) for ti in run.get_task_instances()
    }


def tries(run: Any) -> dict[str, tuple[str, int]]:
    return {
        ti.task_id.replace("_", "-"): (str(ti.state), ti.try_number)
        for ti in run.get_task_instances()
    }


def is_flat(outcome: dict[str, Any]) -> bool:
    """Texts, numbers, flags, and lists of texts."""
    values = [v for value in outcome.values() for v in (value if type(value) is list else [value])]
    return all(value is None or isinstance(value, str | int | bool) for value in values)


@HTTPX
@pytest.mark.airflow
def test_plan_then_run_then_nothing_to_do(run_dag: Callable[..., Any], tmp_path: Path) -> None:
    tables(tmp_path)
    before, first = fingerprint(tmp_path), versions(tmp_path)

    def run(**params: Any) -> dict[str, dict[str, Any]]:
        # Created for each run, because a task stays rendered within one process.
        templates = {"plan_only": "{{ params.plan_only }}"}
        named = {"upgrade-protocol": {"features": ["{{ params.feature }}"]}}
        makers = [lambda c=c: task(c, **templates, **named.get(c.verb, {})) for c in CASES]
        dag = dag_of(tmp_path, *makers)
        return outcomes(run_dag(dag, run_conf=params))

    told = run(plan_only=True)
    assert {verb: told[verb]["status"] for verb in BY_VERB} == {c.verb: c.planned for c in CASES}
    assert fingerprint(tmp_path) == before
    assert all(is_flat(outcome) and outcome["version"] == 15 for outcome in told.values())

    told = run()
    assert {verb: told[verb]["status"] for verb in BY_VERB} == {c.verb: c.done for c in CASES}
    assert all(is_flat(outcome) and outcome["operation"] == verb for verb, outcome in told.items())
    assert {v: n - first[v] for v, n in versions(tmp_path).items()} == {
        c.verb: c.commits for c in CASES
    }
    assert told["vacuum"]["deleted"] == 1 and not (tmp_path / "vacuum/0.parquet").exists()
    assert told["clean-log"]["oldest_version"] == 4
    assert told["drop-feature"]["protocol_min_reader_version"] == 1

    before = fingerprint(tmp_path)
    told = run()
    assert {verb: told[verb]["status"] for verb in BY_VERB} == {c.verb: c.noop for c in CASES}
    assert fingerprint(tmp_path) == before


@HTTPX
@pytest.mark.airflow
def test_a_refusal_is_not_retried_and_changes_nothing(
    run_dag: Callable[..., Any], tmp_path: Path
) -> None:
    tables(tmp_path)
    (tmp_path / "fsck/1.parquet").unlink()
    before = fingerprint(tmp_path)
    corrupt = BY_VERB["fsck"]
    run = run_dag(
        dag_of(
            tmp_path,
            *(lambda c=c: task(c, **c.refused) for c in CASES),
            lambda: task(corrupt, name="corrupt", table_uri="{{ params.root }}/fsck"),
            name="refusals",
        )
    )
    assert tries(run) == dict.fromkeys([*BY_VERB, "corrupt"], ("failed", 1))
    assert fingerprint(tmp_path) == before
    told = outcomes(run)["corrupt"]
    assert (told["status"], told["num_corrupt"]) == ("corrupt", 1)


@contextmanager
def first_apply(
    patch: pytest.MonkeyPatch, change: Callable[[Callable[[], Any]], Any]
) -> Iterator[None]:
    """Applies `change` to the first application of a plan in each task."""
    planned = DeltaMaintenanceOperator.plan_and_log
    called: set[str] = set()

    def once(
        task: DeltaMaintenanceOperator, options: Any, *, plan_only: bool = False
    ) -> Prepared[Any, Any]:
        prepared = planned(task, options, plan_only=plan_only)
        assert prepared is not None
        if task.task_id in called:
            return prepared
        called.add(task.task_id)
        return replace(prepared, apply=lambda: change(prepared.apply))

    with patch.context() as within:
        within.setattr(DeltaMaintenanceOperator, "plan_and_log", once)
        yield


@HTTPX
@pytest.mark.airflow
def test_a_task_that_lost_a_race_is_retried(
    run_dag: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables(tmp_path)

    def lose(_: Callable[[], Any]) -> Any:
        raise CommitConflictError("another writer won", remedy="run again")

    with first_apply(monkeypatch, lose):
        run = run_dag(dag_of(tmp_path, *(lambda c=c: task(c) for c in CASES)))
    assert tries(run) == dict.fromkeys(BY_VERB, ("success", 2))
    assert {v: told["status"] for v, told in outcomes(run).items()} == {
        c.verb: c.done for c in CASES
    }


@HTTPX
@pytest.mark.airflow
def test_a_committed_try_that_died_is_not_repeated(
    run_dag: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables(tmp_path)
    first = versions(tmp_path)

    def land_and_die(apply: Callable[[], Any]) -> Any:
        apply()
        raise StorageError("the connection was lost")

    with first_apply(monkeypatch, land_and_die):
        run = run_dag(dag_of(tmp_path, *(lambda c=c: task(c) for c in CASES)))
    assert tries(run) == dict.fromkeys(BY_VERB, ("success", 2))
    assert {v: told["status"] for v, told in outcomes(run).items()} == {
        c.verb: c.noop for c in CASES
    }
    assert {v: n - first[v] for v, n in versions(tmp_path).items()} == {
        c.verb: c.commits for c in CASES
    }


@each
def test_a_second_process_of_the_same_task_does_no_harm(
    case: Case, tmp_path: Path, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was considered dead does the work between this one's plan and its own."""
    overdue_table(tmp_path / "t")
    arguments = {**case.arguments, "table_uri": str(tmp_path / "t")}

    def zombie_first(apply: Callable[[], Any]) -> Any:
        assert task(case, **arguments).execute(task_context)["status"] == case.done
        return apply()

    with first_apply(monkeypatch, zombie_first):
        status = task(case, **arguments).execute(task_context)["status"]
    version = TableBuilder(tmp_path / "t").open().latest_version()
    # A vacuum that was planned says that it began and ended, though there is nothing left.
    assert version == 15 + case.commits + (2 if case.verb == "vacuum" else 0)
    assert status in {case.done, case.noop, "already-done", "already-there"}


@pytest.mark.airflow
@HTTPX
def test_a_retry_is_the_same_operation_and_a_cleared_task_another(
    run_dag: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BY_VERB["set-properties"]
    table = overdue_table(tmp_path / case.verb)
    ids: list[str] = []
    plan = set_properties.plan

    def recorded(snapshot: Any, options: Any, context: Any) -> Any:
        ids.append(options.operation_id)
        return plan(snapshot, options, context)

    def die(apply: Callable[[], Any]) -> Any:
        apply()
        # A change that was undone in the meantime is not made again.
        undone = {"remove": ("delta.logRetentionDuration",), "operation_id": "undo"}
        options = set_properties.SetPropertiesOptions(**undone)
        set_properties.apply(table.open(), plan(table.open().snapshot(), options))
        raise StorageError("the connection was lost")

    monkeypatch.setattr(f"{set_properties.RECORD.code}.plan", recorded)
    dag = dag_of(tmp_path, lambda: task(case))
    with first_apply(monkeypatch, die):
        run = run_dag(dag)
    assert tries(run) == {case.verb: ("success", 2)}
    assert outcomes(run)[case.verb]["status"] == "nothing-to-do"

    version = table.open().latest_version()
    run_cleared(dag, run)
    assert outcomes(run)[case.verb]["status"] == "committed"
    assert table.open().latest_version() == version + 1
    first, second, cleared = ids
    assert first == second != cleared
    history = [entry.commit_info.get("operationId") for entry in table.open().history(limit=3)]
    assert history == [cleared, "undo", first]


def run_cleared(dag: DAG, run: Any) -> None:
    """Clears the only task of a run, as a user does, and runs it again."""
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.session import create_session

    with create_session() as session:
        # Otherwise the run would have to be started by a scheduler.
        tasks = run.get_task_instances(session=session)
        clear_task_instances(tasks, session, dag_run_state=False)
    with create_session() as session:
        (ti,) = run.get_task_instances(session=session)
        ti.try_number += 1
        session.flush()
        session.expunge(ti)
    _run_task(ti=ti, task=dag.get_task(ti.task_id))


def test_another_request_of_the_same_try_is_another_operation(
    tmp_path: Path, task_context: dict[str, Any]
) -> None:
    """A retry renders its templates again."""
    overdue_table(tmp_path)
    for days in ("60", "61"):
        properties = {"delta.logRetentionDuration": f"interval {days} days"}
        outcome = DeltaSetPropertiesOperator(
            task_id="t", table_uri=str(tmp_path), properties=properties
        ).execute(task_context)
        assert outcome["status"] == "committed"
