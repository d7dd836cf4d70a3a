"""The tables that a run assesses and maintains: those that waited longest, within the limits."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import StorageError
from delta_maintenance.policies import AssessmentStore, discovery
from delta_maintenance_airflow.compat import AirflowFailException, AirflowSkipException
from delta_maintenance_airflow.operators import policy as policy_operators
from delta_maintenance_airflow.operators import scheduled
from delta_maintenance_airflow.operators.policy import DeltaAssessOperator
from delta_maintenance_airflow.operators.scheduled import (
    FAILED,
    FOUND,
    LEFT_OVER,
    DeltaFindTablesOperator,
    DeltaSelectWorkOperator,
    DeltaSummaryOperator,
    summarise,
)
from tests.support.tables.assessed_tables import assessment


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled, "max_map_length", lambda: 1_024)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AssessmentStore:
    store = AssessmentStore(str(tmp_path / "kept"))
    monkeypatch.setattr(scheduled, "assessment_store", lambda: store)
    monkeypatch.setattr(policy_operators, "assessment_store", lambda: store)
    return store


def policy(folder: Path, *tables: dict[str, Any]) -> str:
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "tables": list(tables)}))
    return str(path)


def pushed(context: dict[str, Any]) -> dict[str, Any]:
    calls = context["ti"].xcom_push.call_args_list
    return {call.kwargs["key"]: call.kwargs["value"] for call in calls}


def find(path: str, **given: Any) -> DeltaFindTablesOperator:
    return DeltaFindTablesOperator(task_id="find", policy=path, **given)


def test_tables_come_in_batches_those_assessed_longest_ago_first(
    store: AssessmentStore, task_context: dict[str, Any], tmp_path: Path
) -> None:
    path = policy(tmp_path, *({"name": f"t{n}", "uri": f"/nowhere/{n}"} for n in range(7)))
    for name in ("t4", "t0", "t2"):
        store.save(replace(assessment(name, uri=f"/nowhere/{name[1]}"), health=None))
        # Listings tell milliseconds.
        (file,) = Path(store.uri).glob(f"nowhere-{name[1]}.*")
        moment = {"t4": 1_000, "t0": 2_000, "t2": 3_000}[name]
        os.utime(file, (moment, moment))
    batches = find(path, tables_per_batch=3).execute(task_context)
    names = [[table["name"] for table in batch] for batch in batches]
    assert names == [["t1", "t3", "t5"], ["t6", "t4", "t0"], ["t2"]]
    told = pushed(task_context)[FOUND]
    assert told == {"tables": 7, "batches": 3, "unlisted": [], "skipped": None}


def test_only_some_tables_by_name_or_address(
    store: AssessmentStore, task_context: dict[str, Any], tmp_path: Path
) -> None:
    path = policy(tmp_path, *({"name": f"t{n}", "uri": f"/nowhere/{n}"} for n in range(3)))
    batches = find(path, only=["t2", "/nowhere/0"]).execute(task_context)
    assert [table["name"] for table in batches[0]] == ["t0", "t2"]


def test_batches_grow_where_airflow_maps_no_further(
    store: AssessmentStore,
    task_context: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduled, "max_map_length", lambda: 4)
    path = policy(tmp_path, *({"uri": f"/nowhere/{n}"} for n in range(9)))
    batches = find(path, tables_per_batch=1).execute(task_context)
    assert [len(batch) for batch in batches] == [3, 3, 3]


def test_two_thousand_tables_take_tens_of_tasks(
    store: AssessmentStore, task_context: dict[str, Any], tmp_path: Path
) -> None:
    path = policy(tmp_path, *({"uri": f"/nowhere/{n}"} for n in range(2_000)))
    assert len(find(path).execute(task_context)) == 40


def test_a_pattern_that_fails_is_named_and_the_tables_are_found(
    store: AssessmentStore,
    task_context: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opened(uri: str, options: Any = None) -> Any:
        raise StorageError("the store is down", remedy="wait")

    monkeypatch.setattr(discovery, "open_store", opened)
    monkeypatch.setattr(discovery.time, "sleep", lambda _: None)
    monkeypatch.setattr(
        discovery.discover, "__kwdefaults__", {**discovery.discover.__kwdefaults__, "pauses": ()}
    )
    path = policy(tmp_path, {"name": "t", "uri": "/nowhere/t"}, {"pattern": "/lake/**"})
    assert find(path).execute(task_context) == [[{"name": "t", "uri": "/nowhere/t"}]]
    (failed,) = pushed(task_context)[FOUND]["unlisted"]
    assert failed["name"] == "/lake/**" and "the store is down" in failed["problem"]
    assert store.load("/lake/**") is not None
    monkeypatch.undo()


def test_a_run_is_skipped_while_an_earlier_one_is_at_work(
    store: AssessmentStore, task_context: dict[str, Any], tmp_path: Path
) -> None:
    path = policy(tmp_path, {"uri": "/nowhere/t"})
    ti = task_context["ti"]
    ti.get_ti_count.return_value = 3
    with pytest.raises(AirflowSkipException, match="an earlier run of d is still running"):
        find(path, work_tasks=("assess", "run")).execute(task_context)
    asked = ti.get_ti_count.call_args.kwargs
    assert asked["task_ids"] == ["assess", "run"] and "running" in asked["states"]
    assert "skipped" in pushed(task_context)[FOUND]
    ti.get_ti_count.return_value = 0
    assert find(path, work_tasks=("assess", "run")).execute(task_context)


def row(name: str, last_run_at: str | None, due: tuple[str, ...] = ("checkpoint",)) -> Any:
    found = {"name": name, "uri": f"/{name}", "status": "due" if due else "failed"}
    return {**found, "due": list(due), "problem": None, "last_run_at": last_run_at}


def test_the_tables_that_were_maintained_longest_ago_come_first_and_the_rest_is_named(
    task_context: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assessed = [
        [row("new", None), row("old", "2026-01-01T00:00:00+00:00")],
        [row("older", "2025-01-01T00:00:00+00:00"), row("broken", None, due=())],
    ]
    chosen = DeltaSelectWorkOperator(task_id="t", assessed=assessed, most=2).execute(task_context)
    assert [each["name"] for each in chosen] == ["new", "older"]
    assert pushed(task_context)[LEFT_OVER] == {"tables": 1, "names": ["old"]}
    text = summarise(
        due_rows=chosen,
        outcomes={name: {"status": "done", "problem": None} for name in ("new", "older")},
        failures=[],
        left_over=pushed(task_context)[LEFT_OVER],
        deferred={},
    )["text"]
    assert text == "2 tables with work: 2 done; 1 table left for the next run: old"


@given(
    tables=st.integers(1, 30),
    most=st.integers(1, 7),
    broken=st.sets(st.integers(0, 29), max_size=6),
)
def test_every_table_is_maintained_eventually(tables: int, most: int, broken: set[int]) -> None:
    """Every table is maintained within the smallest sufficient number of runs."""
    last_run: dict[str, str | None] = {f"t{n:02}": None for n in range(tables)}
    runs = -(-tables // most)
    worked: set[str] = set()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(runs):
        rows = [row(name, at) for name, at in last_run.items()]
        rows += [row(f"broken{n}", None, due=()) for n in broken]
        context: Any = {"ti": MagicMock()}
        operator = DeltaSelectWorkOperator(task_id="t", assessed=[rows], most=most)
        chosen = [each["name"] for each in operator.execute(context)]
        assert len(chosen) == min(most, tables)
        worked.update(chosen)
        for name in chosen:
            last_run[name] = (now + timedelta(hours=number)).isoformat()
    assert worked == set(last_run)


def test_temporary_failures_are_assessed_again(
    store: AssessmentStore,
    task_context: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def look(work: Any, told: Any, known: Any) -> Any:
        looked.append(told["name"])
        failing = told["name"] == "gone" or (told["name"] == "down" and looked.count("down") == 1)
        one = replace(assessment(told["name"]), uri=told["uri"])
        if not failing:
            return one
        retryable = told["name"] == "down"
        return replace(one, status="failed", problem="it is", operations=(), retryable=retryable)

    monkeypatch.setattr(policy_operators, "_assess_one", look)
    monkeypatch.setattr(policy_operators, "_PAUSE", 0.0)
    tables = [{"name": name, "uri": f"/{name}"} for name in ("down", "gone", "well")]
    operator = DeltaAssessOperator(task_id="t", tables=tables, policy=policy(tmp_path))
    found = {each["name"]: each for each in operator.execute(task_context)}
    assert sorted(looked) == ["down", "down", "gone", "well"]
    assert {name: each["status"] for name, each in found.items()} == {
        "down": "due",
        "gone": "failed",
        "well": "due",
    }
    assert all("retryable" not in each for each in found.values())


def test_a_defect_with_one_table_leaves_the_others_assessed(
    store: AssessmentStore,
    task_context: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from delta_maintenance.policies import assess

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(assess, "assess_table", broken)
    tables = [{"name": "t", "uri": str(tmp_path)}]
    operator = DeltaAssessOperator(task_id="t", tables=tables, policy=policy(tmp_path))
    (found,) = operator.execute(task_context)
    assert found["status"] == "failed" and "RuntimeError: a defect" in found["problem"]


def summary(task_context: dict[str, Any], **told: Any) -> dict[str, Any]:
    """Returns the summary of these XCom values, by task and key."""

    def pull(*, task_ids: Any, key: str, map_indexes: Any = None) -> Any:
        value = told.get(task_ids if isinstance(task_ids, str) else task_ids[0])
        if isinstance(value, dict):
            return value.get(key)
        return value if key == "return_value" else None

    task_context["ti"].xcom_pull = pull
    tasks = {"find_task": "find", "assess_task": "assess"}
    operator = DeltaSummaryOperator(task_id="s", select_task="select", run_task="run", **tasks)
    return operator.execute(task_context)


def test_a_failed_search_for_tables_fails_the_run(task_context: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match="no tables were found"):
        summary(task_context)
    assert list(pushed(task_context)[FAILED]["of_run"]) == ["find"]
    with pytest.raises(AirflowSkipException, match="still running"):
        summary(task_context, find={FOUND: {"skipped": "an earlier run is still running"}})


def test_a_batch_that_was_not_assessed_is_a_problem(task_context: dict[str, Any]) -> None:
    found = {"tables": 3, "batches": 3, "unlisted": [], "skipped": None}
    with pytest.raises(AirflowFailException, match="1 of 3 batches of tables were not assessed"):
        summary(task_context, find={FOUND: found}, assess=[[], []])
    told = summary(task_context, find={FOUND: found}, assess=[[], [], []])
    assert told["text"] == "nothing was due" and told["num_problems"] == 0


def test_a_task_without_a_result_is_a_problem(task_context: dict[str, Any]) -> None:
    found = {"tables": 2, "batches": 1, "unlisted": [], "skipped": None}
    work = [row("a", None), row("b", None)]
    done = {"name": "a", "status": "done", "problem": None}
    with pytest.raises(AirflowFailException, match="b: see its task, which has left no result"):
        summary(
            task_context,
            find={FOUND: found},
            assess=[work],
            select={"return_value": work},
            run=[done, None],
        )
    assert list(pushed(task_context)[FAILED]["of_run"]) == ["run"]


def test_results_of_batches_count_for_each_table_and_those_that_are_left_wait(
    task_context: dict[str, Any],
) -> None:
    found = {"tables": 4, "batches": 1, "unlisted": [], "skipped": None}
    names = ["a", "b", "c", "d"]
    work = [row(name, None) for name in names]
    known = {"status": "failed", "problem": "it is", "acknowledged": "by ann"}
    told = summary(
        task_context,
        find={FOUND: found},
        assess=[work],
        select={"return_value": [work[:3], work[3:]], LEFT_OVER: {"tables": 1, "names": ["e"]}},
        run=[
            [
                {"name": "a", "status": "done", "problem": None},
                {"name": "b", **known},
                {"name": "c", "status": "left-over", "problem": None},
            ],
            {"name": "d", "status": "done", "problem": None},
        ],
    )
    assert told["text"] == (
        "3 tables with work: 1 acknowledged, 2 done; 1 known broken, acknowledged; "
        "2 tables left for the next run: e, c"
    )
    assert (told["num_problems"], told["left_over"]) == (0, 2)
    assert pushed(task_context)[FAILED] == {"tables": ["b"], "of_run": {}}
