"""Known failures, alerts, and batches of small work, in real DagRuns of the scheduled Dag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.policies import AssessmentEntry
from delta_maintenance.policies.acknowledgements import acknowledge_failure
from delta_maintenance_airflow.settings import assessment_store
from tests.support.orchestrators.airflow_versions import DagBag
from tests.support.orchestrators.policy_dags import DAGS
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.overdue_tables import overdue_table
from tests.support.tables.table_builder import TableBuilder

pytestmark = [
    pytest.mark.airflow,
    # Caused by the libraries of Airflow.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]
Chat = list[tuple[str | None, str]]


def acknowledge(*names: str) -> None:
    def make(entry: AssessmentEntry) -> Any:
        return acknowledge_failure(
            entry.failure,
            name=entry.name,
            reason="the owner knows",
            by="ann",
            until="1d",
            until_changed=False,
            now=clock.now(),
        )

    for name in names:
        assessment_store().acknowledge(name, make)


def tiny_table(folder: Path) -> None:
    """A table on which a checkpoint is due."""
    table = TableBuilder(folder)
    table.commit([protocol(), metadata()])
    for number in range(3):
        table.commit([add(f"{number}.parquet")])


@pytest.fixture
def broken_lake(policy: Callable[..., Path], tmp_path: Path) -> list[str]:
    """Four failures: no table, an operation beyond its limit, a pattern, and no connection."""
    overdue_table(tmp_path / "limited")
    limited = {
        "name": "limited",
        "uri": str(tmp_path / "limited"),
        "vacuum": {"every": "1 day"},
        "limits": {"max_deleted_files": 0},
        "owner": "sales",
    }
    policy(
        {"name": "gone", "uri": str(tmp_path / "nowhere"), "owner": "sales"},
        limited,
        {"name": "lost", "uri": f"{tmp_path}/lost", "storage": {"connection": "of nobody"}},
        {"pattern": "s3://unlisted/**", "storage": {"connection": "of nobody"}},
        checkpoint={"max_commits": 1_000},
        clones={"unreadable": "ignore"},
    )
    return ["gone", "limited", "lost", "s3://unlisted/**"]


def test_a_run_is_green_when_only_acknowledged_tables_fail(
    broken_lake: list[str],
    run: Callable[..., Any],
    chat: Chat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__NOTIFY_CONN_ID", "chat")
    first = run("delta_maintenance")
    assert first["state"] == "failed" and first["run[0]"].state == "failed"
    assert first["summary"].told["num_problems"] == 4
    [(token, text)] = chat
    assert token == "Bearer of the chat"
    assert text.startswith("delta_maintenance: 4 new failures\n• gone: table ")
    assert "\n• limited: 1 file would be deleted" in text

    acknowledge(*broken_lake)
    second = run("delta_maintenance")
    assert second["state"] == "success"
    assert second["run[0]"].state == "skipped"
    assert second["run[0]"].told["acknowledged"].startswith("acknowledged by ann until ")
    summary = second["summary"].told
    assert (summary["num_problems"], summary["acknowledged"]) == (0, 4)
    assert summary["text"] == ("1 table with work: 1 acknowledged; 4 known broken, acknowledged")
    assert len(chat) == 1
    assert (tmp_path / "limited/0.parquet").exists()

    TableBuilder(tmp_path / "nowhere").commit([metadata()])
    third = run("delta_maintenance")
    assert third["state"] == "failed", "a broken table is another failure than none"
    assert third["summary"].told["problems"][0].startswith("gone: ")
    assert len(chat) == 2 and "1 new failure\n• gone: " in chat[1][1]
    assert run("delta_maintenance")["state"] == "failed"
    assert len(chat) == 2, "an hour later it is not new"


def test_new_failures_go_once_to_the_configured_connection(
    policy: Callable[..., Path],
    run: Callable[..., Any],
    chat: Chat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__NOTIFY_CONN_ID", "chat")
    policy({"name": "gone", "uri": str(tmp_path / "nowhere")}, checkpoint=True)
    for _ in range(2):
        assert run("delta_maintenance")["state"] == "failed"
    assert len(chat) == 1
    assert chat[0][1].startswith("delta_maintenance: 1 new failure\n• gone: ")
    tiny_table(tmp_path / "nowhere")
    assert run("delta_maintenance")["state"] == "success"
    assert [text for _, text in chat[1:]] == ["delta_maintenance: well again: gone"]


def test_small_work_is_batched_and_a_failure_leaves_the_rest_of_its_batch_alone(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    names = [f"t{number:02}" for number in range(12)] + ["{{ 7919 * 7919 }}"]
    for name in names:
        tiny_table(tmp_path / "lake" / name)
    overdue_table(tmp_path / "lake/u")
    policy(
        {
            "uri": f"{tmp_path}/lake/u",
            "name": "u",
            "vacuum": {"every": "1 day"},
            "limits": {"max_deleted_files": 0},
        },
        {"name": "lake", "pattern": f"{tmp_path}/lake/*"},
        checkpoint={"max_commits": 1},
    )
    found = run("delta_maintenance")
    runs = {name: each for name, each in found.items() if name.startswith("run[")}
    told = {row["name"]: row for each in runs.values() for row in each.told}
    # Each is expected to take two seconds, and a task is worth thirty.
    assert [len(each.told) for each in runs.values()] == [14]
    assert runs["run[0]"].label == "lake/t00 … u"
    assert set(told) == {"u", *(f"lake/{name}" for name in names)}
    assert {each["status"] for name, each in told.items() if name != "u"} == {"done"}
    assert told["u"]["status"] == "stopped"
    assert [each.state for each in runs.values()] == ["failed"]
    summary = found["summary"].told
    assert summary["statuses"] == {"done": 13, "stopped": 1}
    assert [problem[:3] for problem in summary["problems"]] == ["u: "]
    entry = assessment_store().find_by_name("lake/t03")
    assert isinstance(entry, AssessmentEntry) and entry.link is not None
    assert entry.link.endswith("/tasks/run/mapped/0")
    again = run("delta_maintenance")
    # Now their times are known, and nothing else is due.
    assert again["run[0]"].told["name"] == "u" and "run[1]" not in again


def test_tasks_of_manual_runs_are_queued_before_those_of_scheduled_ones(airflow_db: None) -> None:
    bag = DagBag(dag_folder=str(DAGS / "delta_maintenance_dags.py"))
    manual = bag.dags["delta_manual"].tasks
    assert {task.priority_weight for task in manual} == {1_000}
    assert all("absolute" in str(task.weight_rule).lower() for task in manual)
    # Theirs is the sum over the tasks that follow.
    others = [*bag.dags["delta_maintenance"].tasks, *bag.dags["delta_on_commit"].tasks]
    assert sum(task.priority_weight for task in others) < 1_000
