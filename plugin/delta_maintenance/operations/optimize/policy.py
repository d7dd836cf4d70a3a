"""The rule of a policy for merging small data files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from delta_maintenance.operations import optimize
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.evaluation import EvaluationContext, given
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.policy_values import Bytes, Duration
from delta_maintenance.operations.optimize.options import OptimizeOptions, OptimizePlan
from delta_maintenance.operations.rewriting.models import DELETED_ROWS
from delta_maintenance.operations.rewriting.policy import RewriteRule, due_rewrite


class OptimizeRule(RewriteRule):
    """When small data files are merged."""

    every: Duration = Field(default="1 day", validate_default=True)
    """The shortest time between two runs."""
    min_files_saved: Annotated[int, Field(ge=1)] = 10
    """Due if a run would reduce the number of files by this number."""
    deleted_percent: Annotated[int, Field(ge=0, le=100)] = 5
    """Also due if a larger percentage of the rows of any file is deleted."""
    target_bytes: Bytes | None = None
    """The size of new files; by default the table's `delta.targetFileSize`, else 128 MiB to 1 GiB
    by the size of the table."""
    min_files: Annotated[int, Field(ge=2)] = 2
    """The number of small files in a partition from which they are merged."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if a run would save enough files, or if a file has too many deleted rows."""
    return due_rewrite("optimize", context, OptimizeRule, _planned, _why_not)


def _planned(rule: OptimizeRule, context: EvaluationContext) -> OptimizePlan:
    own = given(
        target_bytes=rule.target_bytes,
        min_files=rule.min_files,
        deleted_percent=rule.deleted_percent,
    )
    options = OptimizeOptions(**rule.shared_options(context), **own)
    return optimize.plan(context.snapshot, options, context=RunContext.at(context.now))


def _why_not(rule: OptimizeRule, plan: OptimizePlan) -> str | None:
    saved = plan.files - plan.files_after
    deleted = any(each.reason == DELETED_ROWS for each in plan.reasons)
    if saved >= rule.min_files_saved or deleted:
        return None
    return f"a run would save {count_text(saved, 'file')}, of {rule.min_files_saved} asked for"
