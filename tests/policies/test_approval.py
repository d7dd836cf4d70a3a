"""A run does exactly what was approved, or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.policies import RunResult
from delta_maintenance.policies.approval import Approvals, ApprovedPlan
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.on_demand import run_operation
from tests.support.tables.actions import add, remove
from tests.support.tables.overdue_tables import fingerprint, overdue_table
from tests.support.tables.table_builder import TableBuilder


def run(folder: Path, operation: str, **options: Any) -> RunResult:
    environment = RunEnvironment(submit=options.pop("submit", None))
    return run_operation(
        open_table(str(folder)), policy(folder), operation, environment=environment, **options
    )


def policy(folder: Path) -> PolicyTable:
    return Policy(version=1).table_at(str(folder))


def approved(folder: Path, operation: str, **options: Any) -> ApprovedPlan:
    outcome = run(folder, operation, plan_only=True, options=options).outcomes[0]
    assert outcome.result is not None
    plan = ApprovedPlan.of(outcome)
    return ApprovedPlan.from_json(plan.to_json())


@pytest.mark.parametrize("operation", ["vacuum", "clean-log", "backfill-row-ids"])
def test_a_plan_that_is_approved_later_is_carried_out_though_others_commit(
    operation: str, tmp_path: Path
) -> None:
    table = overdue_table(tmp_path / "t")
    plan = approved(tmp_path / "t", operation)
    append(table, "later.parquet")
    result = run(tmp_path / "t", operation, approvals=Approvals(plans=(plan,)))
    assert result.status == "done", result.problem


def test_a_plan_that_a_job_made_later_than_the_run_began_is_carried_out(tmp_path: Path) -> None:
    overdue_table(tmp_path / "t")
    outcome = run(tmp_path / "t", "vacuum", plan_only=True).outcomes[0]
    plan = ApprovedPlan.of(replace(outcome, started_at=outcome.started_at - timedelta(minutes=1)))
    result = run(tmp_path / "t", "vacuum", approvals=Approvals(plans=(plan,)))
    assert result.status == "done", result.problem


def test_files_that_expire_after_the_approval_are_kept(tmp_path: Path) -> None:
    overdue_table(tmp_path / "t")
    young = tmp_path / "t/part-00000-11111111-1111-4111-8111-111111111111-c000.parquet"
    plan = approved(tmp_path / "t", "vacuum")
    young.write_bytes(b"x")
    age_in_days(young, 7, short_of=timedelta(seconds=-1), now=plan.planned_at)
    result = run(tmp_path / "t", "vacuum", approvals=Approvals(plans=(plan,)))
    # It was there when the plan was made, for all that anybody can tell.
    assert result.status == "failed" and young.exists()
    assert "the table has changed" in (result.problem or "")


def test_a_file_that_expires_after_the_plan_is_not_included(tmp_path: Path) -> None:
    overdue_table(tmp_path / "t")
    young = tmp_path / "t/part-00000-11111111-1111-4111-8111-111111111111-c000.parquet"
    young.write_bytes(b"x")
    age_in_days(young, 7, short_of=timedelta(hours=-1))
    # As if it had been planned two hours ago. The file has expired since then.
    then = clock.now() - timedelta(hours=2)
    options = {"as_of": then.isoformat()}
    plan = replace(approved(tmp_path / "t", "vacuum", **options), planned_at=then)
    assert approved(tmp_path / "t", "vacuum").effect != plan.effect
    result = run(tmp_path / "t", "vacuum", approvals=Approvals(plans=(plan,)), options=options)
    assert result.status == "done", result.problem
    assert young.exists() and not (tmp_path / "t/0.parquet").exists()


def test_a_table_whose_plan_changed_is_not_touched(tmp_path: Path) -> None:
    table = overdue_table(tmp_path / "t")
    plan = approved(tmp_path / "t", "vacuum")
    append(table, "0.parquet")
    before = fingerprint(tmp_path / "t")
    result = run(tmp_path / "t", "vacuum", approvals=Approvals(plans=(plan,)))
    assert result.status == "failed" and result.exit_status == 3
    assert "vacuum would now have another effect than the approved one" in (result.problem or "")
    assert fingerprint(tmp_path / "t") == before


def test_an_approval_covers_the_paths_and_not_their_number_and_size(tmp_path: Path) -> None:
    """The same number of files and bytes, of the same age, but one of them is another file."""
    table = overdue_table(tmp_path / "t")
    plan = approved(tmp_path / "t", "vacuum")
    unneeded, other = tmp_path / "t/0.parquet", tmp_path / "t/other.parquet"
    shutil.copy2(unneeded, other)
    # Referenced again, so that it is kept.
    table.commit([add("0.parquet")])
    result = run(tmp_path / "t", "vacuum", approvals=Approvals(plans=(plan,)))
    assert result.status == "failed" and "the table has changed" in (result.problem or "")
    assert unneeded.exists() and other.exists()


@pytest.mark.parametrize("moved", [False, True])
def test_on_spark_too_the_job_plans_anew_before_it_runs(moved: bool, tmp_path: Path) -> None:
    overdue_table(tmp_path / "t")
    asked: list[tuple[bool, Any]] = []

    def submit(
        table: PolicyTable,
        due: Any,
        *,
        plan_only: bool = False,
        approved: ApprovedPlan | None = None,
    ) -> Mapping[str, Any]:
        assert due.options.as_of is None
        asked.append((plan_only, approved))
        if not plan_only:
            return {"table": table.uri, "status": "vacuumed", "version": 1}
        return {**shown_plan, "files": 3 + (moved and len(asked) > 1)}

    table = policy(tmp_path / "t")
    shown_plan = vacuum.plan(
        open_table(table.uri).snapshot(), context=RunContext.at(clock.now())
    ).to_json()
    options = {"engine": "spark"}
    given = {"options": options, "environment": RunEnvironment(submit=submit)}
    shown = run_operation(open_table(table.uri), table, "vacuum", plan_only=True, **given)
    (outcome,) = shown.outcomes
    assert outcome.engine == "spark" and outcome.result is not None
    plan = ApprovedPlan.of(outcome)
    result = run_operation(
        open_table(table.uri), table, "vacuum", approvals=Approvals(plans=(plan,)), **given
    )
    assert result.status == ("failed" if moved else "done")
    assert asked == [(True, None), (True, plan), *([] if moved else [(False, plan)])]


def append(table: TableBuilder, path: str) -> None:
    Path(table.store.root, path).write_bytes(b"x")
    table.commit([add(path)])
    if path != "0.parquet":
        table.commit([remove(path)])


def age_in_days(file: Path, days: int, *, short_of: timedelta, now: datetime | None = None) -> None:
    then = ((now or clock.now()) - timedelta(days=days) + short_of).timestamp()
    os.utime(file, (then, then))
