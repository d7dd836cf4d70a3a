"""Approvals and hours of a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from delta_maintenance.policies import entries
from delta_maintenance.policies import run as run_module
from delta_maintenance.policies.approval import Approvals, ApprovedPlan, PendingPlan, pending_of
from delta_maintenance.policies.assessments import AssessmentStore
from delta_maintenance.policies.entries import PlannedFiles
from tests.support.tables.policy_tables import Ticking, asked, neglected, run_on, statuses


def test_operations_that_need_approval_wait_and_others_run() -> None:
    table = neglected()
    policy_table = asked(checkpoint={"max_commits": 1}, vacuum=True, approval=["vacuum"])
    result = run_on(table, policy_table)
    assert statuses(result) == {"checkpoint": "done", "vacuum": "needs-approval"}
    assert (result.status, result.exit_status) == ("done", 0)
    assert "0.parquet" in table.files()
    approved = run_on(
        table, policy_table, approvals=Approvals(operations=["vacuum"]), last_runs=result.last_runs
    )
    assert statuses(approved)["vacuum"] == "done" and "0.parquet" not in table.files()


def test_an_approved_plan_runs_as_shown() -> None:
    table, policy_table = neglected(), asked(vacuum=True, approval=["vacuum"])
    (shown,) = run_on(table, policy_table).outcomes
    assert shown.status == "needs-approval" and shown.result is not None
    assert shown.result["files"] == 1
    plan = ApprovedPlan.of(shown)
    other = replace(plan, effect={**plan.effect, "files": "2"})
    refused = run_on(table, policy_table, approvals=Approvals(plans=[other]))
    assert (refused.status, refused.exit_status) == ("failed", 3)
    assert "the table has changed" in (refused.problem or "") and "0.parquet" in table.files()
    assert "the approved one: files 1 instead of 2" in (refused.problem or "")
    done = run_on(table, policy_table, approvals=Approvals(plans=[plan]))
    assert statuses(done) == {"vacuum": "done"} and "0.parquet" not in table.files()


def test_the_files_of_a_plan_that_waits_are_stored(tmp_path: Path) -> None:
    table, store = neglected(), AssessmentStore(str(tmp_path))
    policy_table = asked(vacuum=True, approval=["vacuum"])
    result = run_on(table, policy_table, save_files=partial(store.save_files, policy_table.uri))
    (plan,) = pending_of(result)
    files = store.files_of(plan)
    assert files is not None and files.is_complete
    (line,) = files.lines
    assert line.endswith("\t0.parquet") and plan.facts["kept"]
    assert plan.facts["retention"] == ("7 days",)
    again = replace(plan.plan, planned_at=plan.plan.planned_at + timedelta(seconds=1))
    assert store.files_of(replace(plan, plan=again)) is None, "of another plan"
    assert PendingPlan.from_json(plan.to_json()) == plan


def test_a_long_list_of_files_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MAX_LIST_BYTES", 100)
    at, endless = datetime(2026, 11, 29, tzinfo=UTC), (f"{n}\tdead\t{n}" for n in count())
    files = PlannedFiles.of(at, endless)
    assert 0 < len(files.lines) < 20 and not files.is_complete


def test_a_plan_without_changes_needs_no_approval() -> None:
    policy_table = asked(vacuum=True, approval=["vacuum"])
    result = run_on(neglected(dead=0), policy_table)
    assert statuses(result) == {"vacuum": "nothing-to-do"} and result.status == "done"
    assert [run.operation for run in result.last_runs] == ["vacuum"]


def test_a_plan_that_exceeds_a_limit_needs_no_approval() -> None:
    rules = {"vacuum": True, "approval": ["vacuum"], "limits": {"max_deleted_files": 0}}
    assert statuses(run_on(neglected(), asked(**rules))) == {"vacuum": "stopped"}


def test_a_waiting_plan_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "plan_for_approval", lambda *_, **__: pytest.fail("planned"))
    policy_table = asked(vacuum=True, approval=["vacuum"])
    result = run_on(neglected(), policy_table, approvals=Approvals(asked=["vacuum"]))
    assert statuses(result) == {"vacuum": "needs-approval"} and result.waits_for_approval


def test_a_waiting_approval_is_reported_once() -> None:
    rules = {"protocol": {"features": ["deletionVectors"]}, "row_tracking": True}
    result = run_on(neglected(), asked(**rules, approval=["upgrade-protocol"]))
    assert [(o.operation, o.status) for o in result.outcomes] == [
        ("upgrade-protocol", "needs-approval"),
        ("backfill-row-ids", "done"),
    ]


def test_a_run_without_permitted_operations_is_blocked() -> None:
    alone = run_on(neglected(), asked(vacuum=True, approval=["vacuum"]))
    assert (alone.status, alone.exit_status) == ("blocked", 0)
    shut = run_on(neglected(), asked(vacuum=True, hours={"windows": ["01:00-02:00"]}))
    assert (shut.status, shut.exit_status, shut.outcomes) == ("blocked", 0, ())


def test_the_hours_may_end_within_a_run() -> None:
    clock = Ticking(timedelta(seconds=20))
    rules = {"checkpoint": {"max_commits": 1}, "fsck": True}
    hours = {"windows": ["12:00-12:01"]}
    result = run_on(neglected(), asked(**rules, hours=hours), now=clock)
    assert statuses(result) == {"fsck": "done"}
    assert result.after is not None and result.after.status == "blocked"
