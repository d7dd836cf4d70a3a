"""Batches of small work: how tables are divided, and what a task does with its share."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, StorageError
from delta_maintenance.policies import AssessmentEntry, AssessmentStore, Leases
from delta_maintenance.policies.acknowledgements import Acknowledgement
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException
from delta_maintenance_airflow.operators import batch_run
from delta_maintenance_airflow.operators import policy as policy_operators
from delta_maintenance_airflow.operators.batch_run import DeltaPolicyBatchOperator
from delta_maintenance_airflow.operators.batches import BatchLimits, divide_into_batches
from delta_maintenance_airflow.operators.manual import DeltaManualOperator
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.assessed_tables import assessment, run_result
from tests.support.tables.table_builder import TableBuilder

NAMES = ["a", "b", "c", "d"]


def row(name: str, *, size: int = 0, seconds: float = 1.0, spark: bool = False) -> dict[str, Any]:
    return {"name": name, "bytes": size, "seconds": seconds, "spark": spark}


def names(batches: Any) -> list[str]:
    return ["".join(each["name"] for each in batch) for batch in batches]


def test_work_that_is_large_or_for_spark_stays_alone() -> None:
    rows = [
        row("a"),
        row("b", size=99),
        row("c", spark=True),
        row("d"),
        row("e", size=1_000),
        row("f", seconds=999),
        row("g"),
        row("h"),
    ]
    limits = BatchLimits(tables=3, bytes=100, time=timedelta(seconds=60), at_once=2)
    assert sorted(names(divide_into_batches(rows, limits))) == ["abd", "c", "e", "f", "gh"]


def test_long_work_is_divided_among_the_tasks_that_run_at_once() -> None:
    rows = [row(name, seconds=20) for name in "abcdefgh"]
    assert names(divide_into_batches(rows, BatchLimits(at_once=4))) == ["ab", "cd", "ef", "gh"]
    assert names(divide_into_batches(rows, BatchLimits(at_once=1))) == ["abcdefgh"]
    short = [row(name, seconds=2) for name in "abcdefgh"]
    assert names(divide_into_batches(short, BatchLimits(at_once=4))) == ["abcdefgh"]
    assert len(divide_into_batches(rows, BatchLimits(tables=1))) == 8


@given(
    st.lists(
        st.builds(
            row,
            st.text("abc", min_size=1),
            size=st.integers(0, 200),
            seconds=st.floats(0, 100),
            spark=st.booleans(),
        )
    ),
    st.integers(1, 9),
)
def test_every_table_is_in_one_batch_within_the_limits(
    rows: list[dict[str, Any]], at_once: int
) -> None:
    limits = BatchLimits(tables=4, bytes=100, time=timedelta(seconds=60), at_once=at_once)
    batches = divide_into_batches(rows, limits)
    assert sorted(id(each) for batch in batches for each in batch) == sorted(map(id, rows))
    for batch in (each for each in batches if len(each) > 1):
        assert len(batch) <= limits.tables
        assert sum(each["bytes"] for each in batch) <= limits.bytes
        assert sum(each["seconds"] for each in batch) <= limits.time.total_seconds()
        assert not any(each["spark"] for each in batch)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AssessmentStore]:
    store = AssessmentStore(str(tmp_path / "kept"))
    for module in (policy_operators, batch_run):
        monkeypatch.setattr(module, "assessment_store", lambda: store)
    monkeypatch.setattr("delta_maintenance_airflow.policy_work.assessment_store", lambda: store)
    yield store
    store.close()


@pytest.fixture
def batch(
    store: AssessmentStore, tmp_path: Path, task_context: dict[str, Any]
) -> DeltaPolicyBatchOperator:
    """The first try of the task for four tables on which a checkpoint is due."""
    task_context["ti"].max_tries = 2
    for name in NAMES:
        table = TableBuilder(tmp_path / name)
        table.commit([protocol(), metadata()])
        table.commit([add("0.parquet")])
    tables = [{"name": name, "uri": str(tmp_path / name)} for name in NAMES]
    path = tmp_path / "policy.yaml"
    rules = {"checkpoint": {"max_commits": 1}}
    path.write_text(yaml.safe_dump({"version": 1, "defaults": rules, "tables": tables}))
    return DeltaPolicyBatchOperator(task_id="t", tables=tables, policy=str(path), retries=2)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The tables that were tried, in order, and the errors that `failing` gives to some."""
    seen: dict[str, Any] = {"names": [], "failing": {}, "then": lambda name: None}
    work = DeltaPolicyRunOperator.work

    def told(self: Any, table: Any, environment: Any, known: Any) -> Any:
        seen["names"].append(table.name)
        seen["then"](table.name)
        if table.name in seen["failing"]:
            raise seen["failing"][table.name]
        return work(self, table, environment, known)

    monkeypatch.setattr(DeltaPolicyRunOperator, "work", told)
    return seen


def statuses(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["name"]: row["status"] for row in rows}


def pushed(context: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = context["ti"].xcom_push.call_args.kwargs["value"]
    return found


def test_a_retry_repeats_only_what_may_pass(
    batch: DeltaPolicyBatchOperator, tried: dict[str, Any], task_context: dict[str, Any]
) -> None:
    context, ti = task_context, task_context["ti"]
    tried["failing"] = {"b": StorageError("the store is down"), "c": RuntimeError("a defect")}
    with pytest.raises(AirflowException, match="2 of 4 tables: the store is down") as failure:
        batch.execute(context)
    assert not isinstance(failure.value, AirflowFailException)
    assert statuses(pushed(context)) == {"a": "done", "b": "failed", "c": "failed", "d": "done"}
    assert tried["names"] == NAMES

    ti.try_number = 2
    tried["names"].clear()
    tried["failing"] = {"c": CorruptTableError("it is damaged")}
    with pytest.raises(AirflowFailException, match="1 of 4 tables: it is damaged"):
        batch.execute(context)
    assert tried["names"] == ["c", "b"]
    assert statuses(pushed(context)) == {"a": "done", "b": "done", "c": "failed", "d": "done"}
    assert [row["operations"] for row in pushed(context) if row["name"] in "abd"] == [
        ["checkpoint: done"]
    ] * 3

    # Cleared by a person: everything is tried again.
    ti.max_tries, ti.try_number = 4, 3
    tried["names"].clear()
    tried["failing"] = {}
    assert statuses(batch.execute(context))["a"] == "nothing-due"
    assert tried["names"] == NAMES


def test_tables_that_kill_their_process_hold_up_no_other(
    batch: DeltaPolicyBatchOperator, tried: dict[str, Any], task_context: dict[str, Any]
) -> None:
    """As if the process had too little memory for a and for c."""

    class Killed(BaseException): ...

    def kill(name: str) -> None:
        if name in ("a", "c"):
            raise Killed

    tried["then"] = kill
    for number in (1, 2, 3):
        task_context["ti"].try_number = number
        with pytest.raises(Killed):
            batch.execute(task_context)
    assert tried["names"] == ["a", "b", "c", "d", "a"]


def test_tables_beyond_the_time_limit_are_left_for_the_next_run(
    batch: DeltaPolicyBatchOperator,
    tried: dict[str, Any],
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(batch_run.time, "monotonic", lambda: now[0])
    tried["then"] = lambda name: now.__setitem__(0, now[0] + 200)
    assert statuses(batch.execute(task_context)) == {
        "a": "done",
        "b": "done",
        "c": "left-over",
        "d": "left-over",
    }


def test_a_killed_task_begins_no_further_table(
    batch: DeltaPolicyBatchOperator, tried: dict[str, Any], task_context: dict[str, Any]
) -> None:
    tried["then"] = lambda name: batch.on_kill() if name == "b" else None
    batch.execute(task_context)
    assert tried["names"] == ["a", "b"]


def test_a_batch_holds_the_lease_of_one_table_at_a_time(
    batch: DeltaPolicyBatchOperator,
    store: AssessmentStore,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take, seen = Leases._take, []

    def taken(
        self: Leases, path: str, name: str, holder: str, patience: timedelta = timedelta()
    ) -> None:
        take(self, path, name, holder, patience)
        if not path.endswith(".lease"):
            return
        seen.append((name, len([*Path(store.uri).glob("*.lease")]), patience.total_seconds()))

    with Leases(store.store).held("d", uri=batch.tables[3]["uri"], holder="somebody"):
        monkeypatch.setattr(Leases, "_take", taken)
        assert statuses(batch.execute(task_context)) == {
            **dict.fromkeys("abc", "done"),
            "d": "busy",
        }
    # One of the two is that of somebody. An earlier try of the task has some seconds to end.
    assert seen == [("a", 2, 15.0), ("b", 2, 15.0), ("c", 2, 15.0)]


def test_the_lineage_names_every_table(
    batch: DeltaPolicyBatchOperator, task_context: dict[str, Any]
) -> None:
    before = [each.table_uri for each in batch.lineages()]
    batch.execute(task_context)
    after = batch.lineages()
    assert [each.table_uri for each in after] == before == [each["uri"] for each in batch.tables]
    assert all(each.written and each.facts for each in after)


def test_a_manual_run_waits_for_the_task_that_changes_its_table(
    batch: DeltaPolicyBatchOperator,
    store: AssessmentStore,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manual = DeltaManualOperator(
        task_id="m", table=batch.tables[0], policy=batch.policy, operation="checkpoint"
    )
    pauses: list[float] = []
    with ExitStack() as other:
        held = Leases(store.store).held("a", uri=batch.tables[0]["uri"], holder="a batch")
        other.enter_context(held)

        def slept(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                other.close()

        # Threads of other tests may sleep by the module itself.
        monkeypatch.setattr(
            policy_operators, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept)
        )
        assert manual.execute(task_context)["operations"] == ["checkpoint: done"]
    assert pauses == [5.0, 10.0, 20.0]

    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    monkeypatch.setattr(policy_operators, "time", clock)
    manual.table = batch.tables[1]
    with (
        Leases(store.store).held("b", uri=batch.tables[1]["uri"], holder="a batch"),
        pytest.raises(AirflowException, match="a batch is working on b"),
    ):
        manual.execute(task_context)
    assert 300 <= now[0] < 400


@pytest.mark.parametrize("known", [False, True])
def test_a_failed_operation_is_logged_as_an_error_and_a_known_one_as_a_warning(
    batch: DeltaPolicyBatchOperator,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    known: bool,
) -> None:
    run = run_result("orders", status="failed", problem="it is broken", exit_status=1)
    done = replace(run.outcomes[0], result=None)
    outcome = replace(done, status="failed", exit_status=1, reason="it is broken")
    due = assessment("orders", assessed_at=clock.now())
    run = replace(run, before=due, outcomes=(done, outcome))
    entry = AssessmentEntry(assessment=due, run=run)
    if known:
        assert entry.failure is not None
        kept = Acknowledgement(failure=entry.failure, reason="known", at=clock.now())
        entry = replace(entry, acknowledgement=kept)
    log = MagicMock()
    monkeypatch.setattr(DeltaPolicyBatchOperator, "log", log)
    batch._facts_of_run(task_context, run, entry)
    levels = [call.args[0] for call in log.log.call_args_list]
    assert levels == [logging.INFO, logging.WARNING if known else logging.ERROR]
