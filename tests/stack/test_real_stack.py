"""The Dags on a real scheduler: woken, approved, killed, cleared."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import psutil
import pytest
import yaml

import delta_maintenance
from delta_maintenance.policies import AssessmentEntry, AssessmentStore
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.overdue_tables import fingerprint, overdue_table
from tests.support.tables.table_builder import TableBuilder

from . import last_commits
from .conftest import PATIENCE, POLL_INTERVAL, Airflow, answered_until_it_ends
from .last_commits import append, checkpoint_of

# The first test also starts Airflow, which may take as long as the waits of `conftest` allow.
pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def tables(lake: Path) -> None:
    for name in ("neglected", "approved", "rejected", "asked", "unasked"):
        overdue_table(lake / name)
    for name in ("busy", *last_commits.TABLES):
        append(lake / name)
    (lake / "spark-reports").mkdir()
    probed = TableBuilder(lake / "probed")
    probed.commit([features("v2Checkpoint"), metadata()])
    for number in range(3):
        probed.store.put(f"{number}.parquet", b"x")
    probed.commit([add(f"{number}.parquet") for number in range(3)])
    own = {"checkpoint": False, "vacuum": False}
    policy = {
        "version": 1,
        "defaults": {"checkpoint": {"max_commits": 5}, "vacuum": {"every": "1 day"}},
        "tables": [
            {"name": "neglected", "uri": str(lake / "neglected")},
            *(
                {"name": name, "uri": str(lake / name), "checkpoint": {"max_commits": 1}}
                for name in ("busy", *last_commits.TABLES)
            ),
            *({"name": name, "uri": str(lake / name), **own} for name in ("approved", "rejected")),
            *(
                {"name": name, "uri": str(lake / name), "approval": ["vacuum"]}
                for name in ("asked", "unasked")
            ),
        ],
    }
    (lake / "policy.yaml").write_text(yaml.safe_dump(policy))


def asking_run(airflow: Airflow) -> str | None:
    """The run of the scheduled Dag whose approvals are waited for."""
    for run in airflow.runs("delta_maintenance"):
        task = airflow.tasks("delta_maintenance", run["dag_run_id"]).get(("approve", -1))
        if task is not None and task["state"] == "awaiting_input":
            return str(run["dag_run_id"])
    return None


def test_a_run_over_all_tables_and_again_after_a_clear(airflow: Airflow, lake: Path) -> None:
    # The run of this hour has already started. Only one of both asks.
    airflow.trigger("delta_maintenance")
    run_id = airflow.wait_for("a question", lambda: asking_run(airflow))
    assert airflow.tasks("delta_maintenance", run_id)["summary", -1]["state"] == "success"
    answer = {
        "chosen_options": ["Approve"],
        "params_input": {"plans": ["vacuum of asked"], "snooze_until": None},
    }
    ended = answered_until_it_ends(airflow, "delta_maintenance", run_id, ("approve", -1), answer)
    assert ended == "success"
    told = airflow.told("delta_maintenance", run_id, "run_approved", 0)
    assert (told["name"], told["operations"]) == ("asked", ["vacuum: done"])
    assert not (lake / "asked/0.parquet").exists() and (lake / "unasked/0.parquet").exists()
    summary = airflow.told("delta_maintenance", run_id, "summary")
    assert summary["num_problems"] == 0
    assert checkpoint_of(lake / "neglected") is not None
    assert not (lake / "neglected/0.parquet").exists()
    kept = AssessmentStore(str(airflow.home / "assessments")).find_by_name("neglected")
    assert isinstance(kept, AssessmentEntry) and kept.run is not None
    assert kept.run.status in ("done", "nothing-due")

    before = fingerprint(lake / "neglected")
    path = "/api/v2/dags/delta_maintenance/clearTaskInstances"
    body = {"dag_run_id": run_id, "dry_run": False, "only_failed": False, "reset_dag_runs": True}
    airflow.call("POST", path, body)
    answer = {"chosen_options": ["Snooze"], "params_input": {"plans": ["all of them"]}}
    ended = answered_until_it_ends(airflow, "delta_maintenance", run_id, ("approve", -1), answer)
    assert ended == "success"
    assert fingerprint(lake / "neglected") == before


def test_a_commit_wakes_the_dag_and_maintenance_does_not(airflow: Airflow, lake: Path) -> None:
    def woken() -> list[dict[str, Any]]:
        return [
            run
            for run in airflow.runs("delta_on_commit")
            if run["run_type"] == "asset_triggered" and run["state"] == "success"
        ]

    def running() -> bool:
        states = {run["state"] for run in airflow.runs("delta_on_commit")}
        return not states <= {"success", "failed"}

    # The watcher begins at the newest version at its first poll. On a busy machine, that may take
    # longer, and another commit is needed.
    time.sleep(10)
    before = len(woken())
    for patience in (PATIENCE / 2, PATIENCE):
        append(lake / "busy")
        committed = datetime.now(UTC)
        try:
            airflow.wait_for(
                "a run for the commit", lambda: len(woken()) > before, patience=patience
            )
            break
        except AssertionError:
            if patience == PATIENCE:
                raise
    run = max(woken(), key=lambda one: str(one["run_after"]))
    tasks = airflow.tasks("delta_on_commit", run["dag_run_id"]).values()
    first = min(task["start_date"] for task in tasks if task["start_date"])
    for name, moment in (("event", run["run_after"]), ("first task", first)):
        seconds = (datetime.fromisoformat(moment) - committed).total_seconds()
        print(f"from the commit to the {name}: {seconds:.1f} s, polls every {POLL_INTERVAL} s")
    newest = delta_maintenance.open_table(str(lake / "busy")).snapshot().version
    assert checkpoint_of(lake / "busy") is not None
    told = airflow.told("delta_on_commit", run["dag_run_id"], "run", 0)
    assert told["name"] == "busy" and told["status"] in ("done", "nothing-due")

    airflow.wait_for("the end of every run", lambda: not running())
    count = len(airflow.runs("delta_on_commit"))
    deltalake.DeltaTable(str(lake / "busy")).optimize.compact()
    assert delta_maintenance.open_table(str(lake / "busy")).snapshot().version > newest
    time.sleep(15)
    assert len(airflow.runs("delta_on_commit")) == count


def test_the_last_commit_is_maintained_without_its_event_and_on_a_table_in_use(
    airflow: Airflow, lake: Path
) -> None:
    with last_commits.paused_schedule(airflow):
        last_commits.maintain_last_commits(airflow, lake, limit=2 * last_commits.LIMIT)


@pytest.mark.parametrize(("name", "answer"), [("approved", "Approve"), ("rejected", "Reject")])
def test_deletions_wait_for_approval(airflow: Airflow, lake: Path, name: str, answer: str) -> None:
    before = fingerprint(lake / name)
    run_id = airflow.trigger("delta_manual", operation="vacuum", tables=[name])
    airflow.wait_for_task("delta_manual", run_id, "one_table.approve", "awaiting_input", 0)
    task = f"/api/v2/dags/delta_manual/dagRuns/{run_id}/taskInstances/one_table.approve/0"
    shown = airflow.call("GET", f"{task}/hitlDetails")
    assert "| `files` | `1 of " in shown["body"] and shown["defaults"] == ["Reject"]
    assert fingerprint(lake / name) == before
    given = {"chosen_options": [answer], "params_input": {}}
    asking = ("one_table.approve", 0)
    ended = answered_until_it_ends(airflow, "delta_manual", run_id, asking, given)
    assert ended == "success"
    run = airflow.tasks("delta_manual", run_id)["one_table.run", 0]
    if answer == "Approve":
        assert run["state"] == "success"
        assert not (lake / name / "0.parquet").exists()
    else:
        assert run["state"] == "skipped"
        assert fingerprint(lake / name) == before


def test_a_deferred_sensor_that_is_killed_is_no_longer_watched(
    airflow: Airflow, lake: Path
) -> None:
    run_id = airflow.trigger("probe_sensor")
    deferred = airflow.wait_for_task("probe_sensor", run_id, "wait", "deferred")
    assert deferred["trigger"]["classpath"].endswith("DeltaCommitTrigger")
    path = f"/api/v2/dags/probe_sensor/dagRuns/{run_id}/taskInstances/wait"
    airflow.call("PATCH", path, {"new_state": "failed"})
    assert airflow.wait_for_run("probe_sensor", run_id) == "failed"
    assert airflow.tasks("probe_sensor", run_id)["wait", -1]["trigger"] is None


@pytest.mark.spark
def test_a_task_killed_with_its_driver_alive_is_tried_again_and_does_no_harm(
    airflow: Airflow, lake: Path
) -> None:
    run_id = airflow.trigger("probe_spark")
    driver = airflow.wait_for("the driver", lambda: driver_process(lake / "probed"))
    task = next(each for each in driver.parents() if "airflow" in " ".join(each.cmdline()).lower())
    os.kill(task.pid, signal.SIGKILL)
    assert airflow.wait_for_run("probe_spark", run_id) == "success"
    assert airflow.tasks("probe_spark", run_id)["checkpoint", -1]["try_number"] == 2
    assert checkpoint_of(lake / "probed") == 1
    files = delta_maintenance.open_table(str(lake / "probed")).snapshot().live_files()
    assert files["path"].to_pylist() == ["0.parquet", "1.parquet", "2.parquet"]


def driver_process(table: Path) -> psutil.Process | None:
    """The Python of a Spark driver that Airflow has started."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if not any(part.endswith("spark/job.py") for part in command) or "java" in command[0]:
            continue
        with suppress(psutil.Error):
            if process.environ().get("PROBE_TABLE") == str(table):
                return process
    return None
