"""The budget of a policy in the tasks of a Dag: the choice, the account, and what waits."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance import clock
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import StorageError
from delta_maintenance.ledger import LedgerTable
from delta_maintenance.policies import AssessmentEntry, AssessmentStore
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.state_files import UNREACHABLE_FILE
from delta_maintenance.storage import open_store
from delta_maintenance_airflow.operators import budget as budget_module
from delta_maintenance_airflow.operators import policy as policy_operators
from delta_maintenance_airflow.operators.batch_run import DeltaPolicyBatchOperator
from delta_maintenance_airflow.operators.manual import DeltaManualOperator
from delta_maintenance_airflow.operators.policy import DeltaAssessOperator, DeltaPolicyRunOperator
from delta_maintenance_airflow.operators.scheduled import (
    DEFERRED,
    LEFT_OVER,
    DeltaSelectWorkOperator,
    summarise,
)
from delta_maintenance_airflow.policy_work import PolicyWork
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.assessed_tables import assessment
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.airflow
Row = dict[str, Any]


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a policy of the tables `t1`, `t2` and so on, with so many commits each, on which a
    checkpoint is due; their first one only if they have none `before`.
    """
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "state"))

    def write(*commits: int, before: bool = True, **budget: Any) -> str:
        tables = []
        for number, count in enumerate(commits, 1):
            table = TableBuilder(tmp_path / f"t{number}")
            table.commit([protocol(), metadata()])
            if before:
                table.checkpoint(0)
            for file in range(count):
                table.commit([add(f"{file}.parquet")], at_ms=epoch_millis(clock.now()))
            tables.append({"name": f"t{number}", "uri": str(tmp_path / f"t{number}")})
        path = tmp_path / "policy.yaml"
        document = {
            "version": 1,
            "defaults": {"checkpoint": {"max_commits": 1}},
            "tables": tables,
            "ledger": {"uri": str(tmp_path / "ledger")},
        }
        path.write_text(yaml.safe_dump(document | ({"budget": budget} if budget else {})))
        return str(path)

    return write


def assessed(path: str, context: Row) -> list[Row]:
    tables = yaml.safe_load(Path(path).read_text())["tables"]
    return DeltaAssessOperator(task_id="a", tables=tables, policy=path).execute(context)


def select(path: str, context: Row, rows: list[Row] | None = None) -> list[Row]:
    rows = assessed(path, context) if rows is None else rows
    operator = DeltaSelectWorkOperator(task_id="s", assessed=[rows], policy=path)
    chosen: list[Row] = operator.execute(context)
    return chosen


def run(path: str, context: Row, tables: list[Row]) -> dict[str, Row]:
    operator = DeltaPolicyBatchOperator(task_id="r", tables=tables, policy=path)
    outcomes = operator.execute(context)
    return {row["name"]: row for row in (outcomes if isinstance(outcomes, list) else [outcomes])}


def pushed(context: Row) -> Row:
    calls = context["ti"].xcom_push.call_args_list
    return {call.kwargs["key"]: call.kwargs["value"] for call in calls}


def entry(tmp_path: Path, name: str) -> AssessmentEntry:
    entry = AssessmentStore(str(tmp_path / "state")).entry_of(str(tmp_path / name), name)
    assert entry is not None
    return entry


def outcomes(tmp_path: Path) -> list[tuple[str, str]]:
    ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
    rows = ledger.read(("table_name", "outcome", "done_by")).to_pylist()
    assert {row["done_by"] for row in rows} == {"airflow"}
    return sorted((row["table_name"], row["outcome"]) for row in rows)


def test_the_best_work_runs_first_and_the_rest_waits_with_its_reason(
    policy: Callable[..., str], task_context: Row, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoints are expected to take 7, 13 and 10 requests."""
    caplog.set_level(logging.INFO)
    path = policy(3, 9, 6, run={"requests": 20})
    due = assessed(path, task_context)
    rows = select(path, task_context, due)
    assert [row["name"] for row in rows] == ["t2", "t1"]
    assert select(path, task_context, due) == rows, "another try makes the same choice"
    waits = entry(tmp_path, "t3").assessment
    assert waits.status == "deferred" and entry(tmp_path, "t2").assessment.status == "due"
    why = (
        "after 1 operation with more gain for their cost, it needs 10, with 0 of the requests left"
    )
    assert why in waits.operations[0].reason and "deferred to the next run" in caplog.text
    assert outcomes(tmp_path) == [("t3", "deferred")]
    lines = [
        line for line in caplog.messages if "t2: checkpoint" in line or "t3: checkpoint" in line
    ]
    assert any(line.startswith("1. t2: checkpoint: gain for its cost") for line in lines)
    assert any(line.startswith("t3: checkpoint waits: after 1 operation") for line in lines)
    results = run(path, task_context, rows)
    text = summarise(
        due_rows=rows,
        outcomes=results,
        failures=[],
        left_over={},
        deferred=pushed(task_context)[DEFERRED],
    )["text"]
    assert text == (
        "2 tables with work: 2 done; 1 operation deferred to the next run, because of the budget"
    )
    assert outcomes(tmp_path) == [("t1", "done"), ("t2", "done"), ("t3", "deferred")]


def test_without_a_budget_nothing_is_asked_for_and_nothing_changes(
    policy: Callable[..., str], task_context: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = policy(3, 9)
    rows = assessed(path, task_context)
    with monkeypatch.context() as patch:
        for module in ("scheduled", "budget"):
            patch.setattr(
                f"delta_maintenance_airflow.operators.{module}.assessment_store",
                lambda: pytest.fail("the state folder is not needed"),
                raising=False,
            )
        assert select(path, task_context, rows) == rows
    assert pushed(task_context) == {LEFT_OVER: {"tables": 0, "names": []}}
    results = run(path, task_context, rows)
    assert [(row["status"], "deferred" in row) for row in results.values()] == [("done", False)] * 2
    assert not (tmp_path / "state/budget").exists()
    assert outcomes(tmp_path) == [("t1", "done"), ("t2", "done")]


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_ledger_that_cannot_be_read_leaves_the_usual_order(
    policy: Callable[..., str],
    task_context: Row,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_silent: bool,
) -> None:
    """One whose store did not answer a task is not asked by others."""
    path = policy(3, 9, 6, run={"requests": 20})
    if is_silent:
        open_store(str(tmp_path / "state")).put(UNREACHABLE_FILE, b"it is down")
    else:
        (tmp_path / "ledger/_delta_log").mkdir(parents=True)
        (tmp_path / "ledger/_delta_log/00000000000000000000.json").write_text("{")
    rows = select(path, task_context)
    assert [row["name"] for row in rows] == ["t1", "t2", "t3"]
    assert "the usual order is used until the budget is spent: " in caplog.text
    statuses = [row["status"] for row in run(path, task_context, rows).values()]
    assert statuses == ["done", "done", "deferred"]


def test_two_runs_at_once_spend_the_budget_of_a_day_once(
    policy: Callable[..., str], task_context: Row, tmp_path: Path
) -> None:
    """Each chooses its own table before the other has spent anything."""
    path = policy(3, 3, before=False, day={"processor_time": "PT0.001S"})
    rows = assessed(path, task_context)
    task_context["ti"].run_id = "scheduled"
    first = select(path, task_context, rows[:1])
    task_context["ti"].run_id = "manual"
    second = select(path, task_context, rows[1:])
    assert [row["name"] for row in first + second] == ["t1", "t2"]
    assert run(path, task_context, second)["t2"]["status"] == "done"
    task_context["ti"].run_id = "scheduled"
    assert run(path, task_context, first)["t1"]["status"] == "deferred"
    (operation,) = entry(tmp_path, "t1").assessment.operations
    assert operation.due_at is not None and operation.due_at.date() > clock.now().date()
    assert operation.reason.endswith("the budget is spent or reserved")
    # Later on this day, nothing is left to choose from.
    assert select(path, task_context) == []
    assert (
        "the budget of processor time is spent"
        in entry(tmp_path, "t1").assessment.operations[0].reason
    )
    until = pushed(task_context)[DEFERRED].pop("until")
    assert datetime.fromisoformat(until) == operation.due_at


@pytest.fixture
def spent(policy: Callable[..., str], task_context: Row) -> str:
    """The policy of two tables, on whose first the budget of the day was spent."""
    path = policy(3, 3, before=False, day={"processor_time": "PT0.001S"})
    assert run(path, task_context, assessed(path, task_context)[:1])["t1"]["status"] == "done"
    return path


def test_runs_woken_by_commits_count_and_manual_runs_do_not(
    spent: str, task_context: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"name": "t2", "uri": str(tmp_path / "t2")}
    woken = DeltaPolicyRunOperator(task_id="run", table=table, policy=spent)
    facts = woken.execute(task_context)
    assert (facts["status"], facts["deferred"], facts["problem"]) == ("deferred", 1, None)
    manual = DeltaManualOperator(task_id="m", table=table, operation="checkpoint", policy=spent)
    with monkeypatch.context() as patch:
        patch.setattr(policy_operators, "table_budget", lambda *_: pytest.fail("it has none"))
        assert manual.execute(task_context)["status"] == "done"
    assert woken.execute(task_context)["status"] == "nothing-due"


KILLED = """
import os, signal, sys
from types import SimpleNamespace
from delta_maintenance.protocol.delta_log.file_sample import FileSample
FileSample.files = lambda _: []
from delta_maintenance.policies import run
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator

run.execute = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
ti = SimpleNamespace(
    dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0
)
name, uri, policy = sys.argv[1:]
operator = DeltaPolicyRunOperator(task_id="t", table={"name": name, "uri": uri}, policy=policy)
operator.execute({"ti": ti})
"""


@pytest.mark.process
def test_what_a_killed_task_had_booked_stays_booked(
    policy: Callable[..., str], task_context: Row, tmp_path: Path
) -> None:
    path = policy(3, 3, before=False, run={"requests": 3})
    rows = assessed(path, task_context)
    program = [sys.executable, "-c", KILLED, "t1", str(tmp_path / "t1"), path]
    killed = subprocess.run(program, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (file,) = (tmp_path / "state/budget").iterdir()
    assert ".begun." in file.name
    # Its checkpoint was expected to take more than the three requests of the run. It is counted
    # already, so that only the other one is chosen among.
    assert [row["name"] for row in select(path, task_context, rows)] == ["t1"]
    assert {row["status"] for row in run(path, task_context, rows).values()} == {"deferred"}
    task_context["ti"].run_id = "the next"
    assert {row["status"] for row in run(path, task_context, rows[1:]).values()} == {"done"}


def test_a_table_that_could_not_be_assessed_in_time_comes_last_and_may_run(
    policy: Callable[..., str], task_context: Row, tmp_path: Path
) -> None:
    path = policy(9, 3, run={"requests": 20})
    rows = assessed(path, task_context)
    slow = {**rows[0], "due": ["assessment"], "alone": True}
    assert [row["name"] for row in select(path, task_context, [slow, rows[1]])] == ["t2", "t1"]


def test_a_table_whose_catalog_does_not_answer_is_not_ranked(
    policy: Callable[..., str],
    task_context: Row,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = policy(9, 3, run={"requests": 20})
    rules_of = PolicyWork.rules_of

    def asked(work: PolicyWork, name: str, uri: str) -> PolicyTable:
        if name == "t1":
            raise StorageError("the catalog is down")
        return rules_of(work, name, uri)

    monkeypatch.setattr(PolicyWork, "rules_of", asked)
    assert [row["name"] for row in select(path, task_context)] == ["t2", "t1"]
    assert "t1 is not ranked: the catalog is down" in caplog.text


def test_rows_stay_small_and_the_log_short(
    policy: Callable[..., str], task_context: Row, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every table has one operation that fits and one that waits."""
    caplog.set_level(logging.INFO)
    tables, longest = 60, 640
    path = policy(run={"requests": tables * 11}, most_intervals=100)
    store, rows = AssessmentStore(str(tmp_path / "state")), []
    for number in range(tables):
        one = assessment(f"table_{number}", seed=number, assessed_at=clock.now())
        operations = tuple(
            replace(one.operations[0], operation=name, requests=requests, due_since=None)
            for name, requests in (("checkpoint", 10), ("optimize", 10_000))
        )
        store.save(replace(one, operations=operations))
        row = {"name": one.name, "uri": one.uri, "due": ["checkpoint", "optimize"], "waits": []}
        rows.append({**row, "last_run_at": None, "spark": False, "bytes": 0, "seconds": 2.0})
    chosen = select(path, task_context, rows)
    assert len(chosen) == tables and all(row["due"] == ["checkpoint"] for row in chosen)
    assert all(row["allotment"]["deferred"] for row in chosen)
    assert max(len(json.dumps(row)) for row in chosen) <= longest
    lines = [each.getMessage() for each in caplog.records if each.name == budget_module.__name__]
    assert len(lines) < 50 and lines.count(f"and {tables - 20} more") == 2
