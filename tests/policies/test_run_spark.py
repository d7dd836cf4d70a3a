"""Operations of a run that are submitted to Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.policies import AssessedOperation
from delta_maintenance.policies.approval import Approvals, ApprovedPlan
from delta_maintenance.policies.definition import PolicyTable
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.policy_tables import asked, neglected, run_on
from tests.support.tables.vacuum_tables import NOW, Folder


def test_operations_for_spark_are_submitted_with_their_options() -> None:
    submitted: list[tuple[PolicyTable, AssessedOperation]] = []

    def submit(table: PolicyTable, operation: AssessedOperation) -> Mapping[str, Any]:
        submitted.append((table, operation))
        return {"table": table.uri, "version": 13, "status": "vacuumed", "end_version": 13}

    policy_table = asked(vacuum=True, engine={"prefer": "spark"})
    result = run_on(neglected(), policy_table, submit=submit)
    assert [(t, o.operation, o.options.engine) for t, o in submitted] == [
        (policy_table, "vacuum", "spark")
    ]
    (outcome,) = result.outcomes
    assert (outcome.engine, outcome.status, outcome.commits) == ("spark", "done", 1)


def test_plans_for_spark_are_submitted() -> None:
    asked_for: list[Any] = []

    def submit(table: PolicyTable, operation: AssessedOperation) -> Mapping[str, Any]:
        asked_for.append(operation.options.engine)
        return {"table": table.uri, "version": 15, "status": "enabled", "num_commits": 3}

    table = Folder(first=[features(writer_only=("rowTracking", "domainMetadata")), metadata()])
    table.log(add("without-statistics.parquet"))
    rules = {"row_tracking": True, "engine": {"spark_files": 1}}
    result = run_on(table, asked(**rules), submit=submit)
    assert asked_for[:1] == ["spark"] and result.outcomes[0].engine == "spark"


@pytest.mark.parametrize(
    ("limits", "jobs", "status"),
    [
        ({}, [False], "done"),
        ({"max_deleted_files": 10}, [True, False], "done"),
        ({"max_deleted_files": 9}, [True], "stopped"),
        ({"max_deleted_bytes": 999}, [True], "stopped"),
        ({"max_deleted_share": 0.1}, [True, False], "done"),
    ],
)
def test_limits_are_checked_before_spark_deletes(
    limits: dict[str, Any], jobs: list[bool], status: str
) -> None:
    planned: list[bool] = []
    bound: list[ApprovedPlan | None] = []
    neglected_table = neglected()
    plan = vacuum.plan(neglected_table.open().snapshot(), context=RunContext.at(NOW)).to_json()

    def submit(
        table: PolicyTable,
        operation: AssessedOperation,
        *,
        plan_only: bool = False,
        approved: ApprovedPlan | None = None,
    ) -> Mapping[str, Any]:
        planned.append(plan_only)
        bound.append(approved)
        if plan_only:
            return {**plan, "files": 10, "bytes": 1000}
        return {"table": table.uri, "version": 13, "status": "vacuumed", "end_version": 13}

    policy_table = asked(vacuum=True, engine={"prefer": "spark"}, limits=limits)
    result = run_on(neglected_table, policy_table, submit=submit)
    assert planned == jobs
    # The job must delete what was compared with the limits, and nothing else.
    assert [each is not None for each in bound] == [bool(limits) and not only for only in jobs]
    assert result.outcomes[0].status == status and result.outcomes[0].engine == "spark"


def test_without_spark_the_operation_fails_with_the_remedy() -> None:
    result = run_on(neglected(), asked(vacuum=True, engine={"prefer": "spark"}))
    assert (result.status, result.exit_status) == ("failed", 2)
    assert "orchestrator" in (result.problem or "")


@pytest.mark.parametrize("rules", [{"approval": ["vacuum"]}, {"limits": {"max_deleted_files": 1}}])
def test_a_plan_of_a_job_that_deletes_nothing_needs_no_second_job(rules: dict[str, Any]) -> None:
    clean = neglected(dead=0)
    # The job planned for longer than a plan with deletions is valid.
    started = RunContext.at(NOW - timedelta(hours=2))
    plan = vacuum.plan(clean.open().snapshot(), context=started)
    assert plan.is_noop
    planned: list[bool] = []

    def submit(*_: object, plan_only: bool = False) -> Mapping[str, Any]:
        planned.append(plan_only)
        return plan.to_json()

    policy_table = asked(vacuum=True, engine={"prefer": "spark"}, **rules)
    approvals = Approvals(plans_on_spark=True)
    (outcome,) = run_on(clean, policy_table, submit=submit, approvals=approvals).outcomes
    assert (outcome.engine, outcome.status) == ("spark", "nothing-to-do")
    assert planned == [True]
