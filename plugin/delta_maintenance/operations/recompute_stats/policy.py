"""The policy rule for statistics of data files."""

from __future__ import annotations

from pydantic import Field

from delta_maintenance.operations import recompute_stats
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.policy_values import Duration, Share
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.recompute_stats import RecomputeStatsOptions

_NAME = "recompute-stats"


class StatisticsRule(Rule):
    """When statistics that are missing or wrong are recomputed."""

    every: Duration = Field(default="1 day", validate_default=True)
    """The shortest time between two runs."""
    above_share: Share = 0.0
    """Due if a larger share of the bytes of the table is in files with missing or wrong
    statistics."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if a larger share of the bytes has missing or wrong statistics."""
    rule = context.rule("statistics", StatisticsRule)
    if rule is None:
        return None
    calendar_reason, due_at = context.since_last_run(_NAME, rule.every)
    if due_at is not None:
        return not_due(_NAME, calendar_reason, due_at)
    options = context.options(RecomputeStatsOptions, rule)
    plan = recompute_stats.plan(context.snapshot, options, context=RunContext.at(context.now))
    share = plan.bytes / plan.total_bytes if plan.total_bytes else 0.0
    if plan.is_noop:
        return not_due(_NAME, plan.reason)
    if share <= rule.above_share:
        return not_due(
            _NAME,
            f"{share:.1%} of the bytes have missing or wrong statistics, which is no more than "
            f"{rule.above_share:.1%}",
        )
    return AssessedOperation(
        operation=_NAME,
        status="due",
        reason=plan.reason,
        engine=plan.engine,
        options=plan.options,
        bytes_to_read=context.health.bytes_to_open,
        requests=2 * plan.files + 3 * plan.commits,
    )
