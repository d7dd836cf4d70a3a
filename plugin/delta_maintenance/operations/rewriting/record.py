"""The record of an operation that rewrites data files, built from its specific properties."""

from __future__ import annotations

from typing import TypeVar

from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.rewriting.facts import (
    conclusion,
    done_amounts,
    plan_facts,
    planned_amounts,
    result_facts,
)
from delta_maintenance.operations.rewriting.models import RewriteOptions, RewritePlan, RewriteResult

Options = TypeVar("Options", bound=RewriteOptions)
Plan = TypeVar("Plan", bound=RewritePlan)
Result = TypeVar("Result", bound=RewriteResult)

_OUTCOMES = {
    "rewritten": Outcome.DONE,
    "partly": Outcome.INCOMPLETE,
    "conflict": Outcome.CONFLICT,
    "failed": Outcome.FAILED,
    "nothing-to-do": Outcome.NOTHING_TO_DO,
}


def rewrite_record(
    name: str,
    *,
    title: str,
    summary: str,
    description: str,
    options: type[Options],
    plan: type[Plan],
    result: type[Result],
    policy: PolicyPart,
) -> OperationRecord[Options, Plan, Result]:
    """Returns the record of the operation `name`; its package in `operations` has the same name."""
    return OperationRecord(
        name=name,
        title=title,
        summary=summary,
        description=description,
        options=options,
        plan=plan,
        result=result,
        code=f"delta_maintenance.operations.{name}.operation",
        outcomes=_OUTCOMES,
        effects=Effects(commits=True),
        requires=("rewrite-data",),
        spark=SparkPart(engine="delta_maintenance.spark.rewriting:SparkRewriting.of_job"),
        policy=policy,
        decisive=("target_bytes",),
        bounds={"max_files": "files", "max_bytes": "bytes"},
        planned_amounts=planned_amounts,
        done_amounts=done_amounts,
        plan_facts=plan_facts,
        result_facts=result_facts,
        conclusion_of_result=conclusion,
        wrote=lambda result: result.num_commits > 0,
    )
