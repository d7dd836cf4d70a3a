"""The Dags that maintain the tables of a policy, in real DagRuns."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from delta_maintenance.policies import AssessmentEntry, Leases
from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.operators.questions import require_valid_approval
from delta_maintenance_airflow.settings import assessment_store
from tests.support.orchestrators.airflow_versions import DagBag
from tests.support.orchestrators.policy_dags import DAGS, Somebody, fresh_table
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.overdue_tables import fingerprint, overdue_table
from tests.support.tables.table_builder import TableBuilder

pytestmark = [
    pytest.mark.airflow,
    # Caused by the libraries of Airflow.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]


def scheduled(run: Callable[..., Any], **params: Any) -> dict[str, Any]:
    return run("delta_maintenance", run_conf=params)


def test_due_operations_run_and_a_broken_table_does_not_stop_others(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    neglected = overdue_table(tmp_path / "lake/neglected")
    fresh_table(tmp_path / "lake/fresh")
    policy(
        {"name": "gone", "uri": str(tmp_path / "nowhere")},
        {"name": "lost", "uri": f"{tmp_path}/lost", "storage": {"connection": "of nobody"}},
        {"uri": f"{tmp_path}/lake/fresh", "vacuum": False, "clean_log": False},
        {"pattern": f"{tmp_path}/lake/**"},
        {"pattern": "s3://unlisted/**", "storage": {"connection": "of nobody"}},
        checkpoint={"max_commits": 5},
        clean_log={"every": "1 day"},
        vacuum={"every": "7 days", "min_reclaimable": 0},
        # By default, a vacuum waits for tables that could be clones of its own.
        clones={"unreadable": "ignore"},
    )
    found = scheduled(run)
    assert found["state"] == "failed"
    runs = [each for name, each in found.items() if name.startswith("run[")]
    worked = {each.told["name"]: each for each in runs if each.told}
    assert [each.state for each in runs] == ["success"], "what cannot be assessed costs no task"
    assert worked["neglected"].state == "success"
    assert worked["neglected"].told["status"] == "done"
    assert worked["neglected"].told["operations"][0] == "checkpoint: done"
    assert not (tmp_path / "lake/neglected/0.parquet").exists()
    assert neglected.open().snapshot().log.checkpoint is not None
    assert set(worked) == {"neglected"}
    summary = found["summary"]
    assert summary.state == "failed"
    assert summary.told["tables"] == 1
    assert summary.told["statuses"] == {"done": 1} and summary.told["not_assessed"] == 3
    told = dict(problem.split(": ", 1) for problem in summary.told["problems"])
    assert set(told) == {"gone", "lost", "s3://unlisted/**"}
    assert "nowhere" in told["gone"] and "of nobody" in told["lost"]
    assert "of nobody" in told["s3://unlisted/**"]
    kept = assessment_store().load("s3://unlisted/**")
    assert isinstance(kept, AssessmentEntry) and kept.assessment.subject == "pattern"
    gone = assessment_store().find_by_name("gone")
    assert isinstance(gone, AssessmentEntry) and gone.assessed_link is not None
    assert "/tasks/assess/mapped/" in gone.assessed_link

    lake = {"name": "all", "pattern": f"{tmp_path}/lake/**"}
    policy(lake, checkpoint={"max_commits": 5}, vacuum={"every": "7 days"})
    again = scheduled(run, tables=["all/neglected"])
    assert again["state"] == "success"
    assert again["assess[0]"].told == []
    assert again["summary"].told["text"] == "nothing was due"


def test_a_plan_changes_nothing(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    overdue_table(tmp_path / "t")
    before = fingerprint(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")}, checkpoint=True, vacuum={"every": "1 day"})
    found = scheduled(run, plan_only=True)
    assert found["run[0]"].told["status"] == "planned"
    assert fingerprint(tmp_path / "t") == before


def test_a_busy_table_is_skipped_and_shown_on_the_page(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    overdue_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")}, checkpoint={"max_commits": 1})
    store = assessment_store()
    with Leases(store.store).held("t", uri=str(tmp_path / "t"), holder="somebody"):
        found = scheduled(run)
    assert found["state"] == "success"
    assert found["run[0]"].state == "skipped"
    assert found["summary"].told["statuses"] == {"busy": 1}
    found = scheduled(run)
    assert found["run[0]"].told["operations"] == ["checkpoint: done"]
    entry = store.find_by_name("t")
    assert isinstance(entry, AssessmentEntry)
    assert entry.run is not None and entry.run.status == "done"
    assert entry.link is not None and entry.link.endswith("/tasks/run/mapped/0")
    assert entry.health is not None and entry.health.commits_since_checkpoint == 0


def worn_again(folder: Path) -> None:
    """One more file that nothing refers to, as old as the others."""
    shutil.copy2(folder / "0.parquet", folder / "forgotten.parquet")


def approving(folder: Path) -> dict[str, Any]:
    """The entry of a table on which a vacuum is due that needs an approval."""
    own = {"vacuum": {"every": "1 day"}, "approval": ["vacuum"]}
    return {"name": folder.name, "uri": str(folder), **own}


def test_one_question_covers_all_plans_and_the_chosen_ones_run(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        overdue_table(tmp_path / name)
    TableBuilder(tmp_path / "clean").commit([protocol(), metadata()])
    folders = [tmp_path / name for name in ("a", "b", "clean")]
    policy(*map(approving, folders), checkpoint={"max_commits": 5})
    somebody.given = {"plans": ["vacuum of a"], "snooze_until": None}
    found = scheduled(run)
    assert found["state"] == "success"
    assert found["summary"].state == "success", "the summary waits for nobody"
    asked = found["pending_plans"].told
    assert sorted((plan["name"], plan["files"]) for plan in asked) == [("a", 1), ("b", 1)]
    (shown,) = somebody.shown
    assert "2 plans on 2 tables wait for approval; together they delete 2 files" in shown
    assert "| `b` | `vacuum` | `1` |" in shown
    assert found["run_approved[0]"].told["operations"] == ["vacuum: done"]
    assert "run_approved[1]" not in found
    assert not (tmp_path / "a/0.parquet").exists() and (tmp_path / "b/0.parquet").exists()
    store = assessment_store()
    pending = {name: store.find_by_name(name).pending for name in ("a", "b", "clean")}
    assert {name: len(plans) for name, plans in pending.items()} == {"a": 0, "b": 1, "clean": 0}

    # The plan of b is part of the next question, and needs no separate task.
    somebody.answer, somebody.given = "Snooze", {"plans": ["all of them"]}
    again = scheduled(run)
    assert "run[0]" not in again and len(again["pending_plans"].told) == 1
    assert again["run_approved"].state == "skipped"
    (first,) = (plan["due_since"] for plan in asked if plan["name"] == "b")
    assert again["pending_plans"].told[0]["due_since"] == first
    # It is not part of a question for a week.
    last = scheduled(run)
    assert last["state"] == "success" and "run[0]" not in last
    assert last["pending_plans"].state == last["approve"].state == "skipped"
    assert (tmp_path / "b/0.parquet").exists()


def test_the_address_of_an_approved_table_is_no_template(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    """Whoever can create a folder in the lake could run code on a worker."""
    name = "{{ 7919 * 7919 }}"
    overdue_table(tmp_path / "lake" / name)
    rules = {"vacuum": {"every": "1 day"}, "approval": ["vacuum"]}
    policy({"name": "all", "pattern": f"{tmp_path}/lake/**", **rules})
    somebody.given = {"plans": ["all of them"]}
    found = scheduled(run)
    told = found["run_approved[0]"].told
    assert (told["name"], told["uri"]) == (f"all/{name}", f"{tmp_path}/lake/{name}")
    assert told["operations"] == ["vacuum: done"]
    assert found["state"] == "success"


def test_a_table_that_changed_after_the_approval_is_not_touched(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    overdue_table(tmp_path / "a")
    policy(approving(tmp_path / "a"))
    somebody.given = {"plans": ["vacuum of a"]}
    somebody.meanwhile = lambda: worn_again(tmp_path / "a")
    found = scheduled(run)
    assert found["state"] == "failed"
    told = found["run_approved[0]"].told
    assert told["status"] == "failed" and "the table has changed" in told["problem"]
    assert (tmp_path / "a/0.parquet").exists()


def test_on_commit_changed_tables_are_maintained(
    policy: Callable[..., Path], tmp_path: Path
) -> None:
    from delta_maintenance_airflow.policy_assets import changed_tables

    uri = str(tmp_path / "t")
    policy({"name": "mine", "uri": uri}, {"pattern": f"{tmp_path}/lake/**"})
    bag = DagBag(dag_folder=str(DAGS / "delta_maintenance_dags.py"))
    assert not bag.import_errors
    schedule = bag.dags["delta_on_commit"].timetable.asset_condition
    assets = schedule.objects
    assert [watcher.trigger.store for asset in assets for watcher in asset.watchers] == ["file:"]
    events = {
        # Only the values count; an asset with a watcher is not hashable in Airflow 3.1.
        assets[0].name: [
            SimpleNamespace(extra={"payload": {"status": "changed", "table": uri}}),
            SimpleNamespace(
                extra={"payload": {"status": "error", "table": "x", "message": "gone"}}
            ),
            SimpleNamespace(extra=None),
        ]
    }
    assert changed_tables(events) == [
        {"name": "mine", "uri": uri, "problem": None},
        {"name": "x", "uri": "x", "problem": "gone"},
    ]


def test_without_a_policy_dags_parse_and_watch_nothing(airflow_db: None) -> None:
    bag = DagBag(dag_folder=str(DAGS))
    assert not bag.import_errors
    assert {"delta_maintenance", "delta_on_commit", "delta_manual"} <= set(bag.dags)
    for dag in bag.dags.values():
        assert dag.doc_md and dag.description


def test_the_process_of_a_task_does_not_read_the_policy_for_the_schedule(
    policy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy({"uri": str(tmp_path / "t")}).write_text("version: none")
    file = str(DAGS / "delta_maintenance_dags.py")
    assert DagBag(dag_folder=file).import_errors
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "delta_maintenance")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", "assess")
    bag = DagBag(dag_folder=file)
    assert not bag.import_errors and "delta_maintenance" in bag.dags


def test_the_requester_of_a_run_cannot_approve_it(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    context: Any = {"dag_run": SimpleNamespace(triggering_user_name="ann", run_type="manual")}
    ann, bob = {"id": "1", "name": "ann"}, {"id": "2", "name": "bob"}
    require_valid_approval(context, {"responded_by_user": ann}, [])
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__SEPARATE_APPROVER", "True")
    require_valid_approval(context, {"responded_by_user": bob}, [])
    for user in (ann, {"id": "ann", "name": "Ann"}, None):
        with pytest.raises(AirflowException, match="triggered by ann"):
            require_valid_approval(context, {"responded_by_user": user}, [])
    context["dag_run"].triggering_user_name = None
    with pytest.raises(AirflowException, match="whose name is unknown"):
        require_valid_approval(context, {"responded_by_user": bob}, [])
    context["dag_run"].run_type = "scheduled"
    require_valid_approval(context, {"responded_by_user": ann}, [])
