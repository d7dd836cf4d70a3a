"""The rule of a policy for removing deleted rows from live data files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from delta_maintenance.operations import purge
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.evaluation import EvaluationContext, given
from delta_maintenance.operations.core.policy_values import Duration
from delta_maintenance.operations.purge import PurgeOptions, PurgePlan
from delta_maintenance.operations.rewriting.policy import RewriteRule, due_rewrite


class PurgeRule(RewriteRule):
    """When files with deleted rows are rewritten without them."""

    every: Duration = Field(default="7 days", validate_default=True)
    """The shortest time between two runs."""
    above_percent: Annotated[int, Field(ge=0, le=100)] = 0
    """Only files of which a larger percentage of rows is deleted."""
    dropped_columns: bool = True
    """Whether files with values of dropped columns are rewritten too; reads footers if columns were
    dropped."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if a live file has deleted rows or values of dropped columns."""
    return due_rewrite("purge", context, PurgeRule, _planned, _judged)


def _planned(rule: PurgeRule, context: EvaluationContext) -> PurgePlan:
    own = given(above_percent=rule.above_percent, dropped_columns=rule.dropped_columns)
    options = PurgeOptions(**rule.shared_options(context), **own, holders=context.rules.holders)
    return purge.plan(context.snapshot, options, context=RunContext.at(context.now))


def _judged(_: PurgeRule, plan: PurgePlan) -> tuple[bool, str]:
    return not plan.is_noop, plan.reason
