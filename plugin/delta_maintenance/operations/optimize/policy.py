"""The rule of a policy for merging small data files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from delta_maintenance.operations import optimize
from delta_maintenance.operations.cluster.policy import sorts
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.evaluation import EvaluationContext, given, not_due
from delta_maintenance.operations.core.policy_values import Duration
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizePlan
from delta_maintenance.operations.rewriting.models import DELETED_ROWS
from delta_maintenance.operations.rewriting.policy import NewFileRule, due_rewrite, files_saved


class OptimizeRule(NewFileRule):
    """When small data files are merged."""

    every: Duration = Field(default="1 day", validate_default=True)
    """The shortest time between two runs."""
    deleted_percent: Annotated[int, Field(ge=0, le=100)] = 5
    """Also due if a larger percentage of the rows of any file is deleted."""
    min_files: Annotated[int, Field(ge=2)] = 2
    """The number of small files in a partition from which they are merged."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if a run would save enough files, or if a file has too many deleted rows.

    Never due where the policy has the rows sorted: `cluster` writes the same files larger.
    """
    if context.rule("optimize", OptimizeRule) is not None and sorts(context):
        return not_due("optimize", "the rule for cluster also merges the small files of the table")
    return due_rewrite("optimize", context, OptimizeRule, _planned, _judged)


def _planned(rule: OptimizeRule, context: EvaluationContext) -> OptimizePlan:
    own = given(min_files=rule.min_files, deleted_percent=rule.deleted_percent)
    options = OptimizeOptions(**rule.shared_options(context), **own)
    return optimize.plan(context.snapshot, options, context=RunContext.at(context.now))


def _judged(rule: OptimizeRule, plan: OptimizePlan) -> tuple[bool, str]:
    enough, why_not = files_saved(rule, plan)
    deleted = any(each.reason == DELETED_ROWS for each in plan.reasons)
    return (True, plan.reason) if enough or deleted else (False, why_not)
