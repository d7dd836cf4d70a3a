"""The rule of a policy for reports on the layout of data files."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.policy_values import Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.layout import LayoutOptions


class LayoutRule(Rule):
    """When to report on the layout of data files, and for which queries."""

    every: Duration = Field(default="7 days", validate_default=True)
    """The shortest time between two reports."""
    columns: tuple[str, ...] = ()
    """Columns that filters compare. Without columns and conditions, those that the table is
    clustered by."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if clustering would pay, and no report has said so lately; and once it no longer pays."""
    rule = context.rule("layout", LayoutRule)
    if rule is None:
        return None
    # Imported here, because rules are read without Arrow.
    from delta_maintenance.operations.layout import operation

    last_run = context.last_run("layout")
    calendar_reason, due_at = context.since_last_run("layout", rule.every)
    if due_at is not None:
        return not_due("layout", calendar_reason, due_at)
    options = context.options(LayoutOptions, rule)
    if not options.columns and not options.where and options.queries is None:
        # For every table there is some column by which its files overlap.
        options = replace(options, columns=operation.clustered_by(context.snapshot))
        if not options.columns:
            return not_due("layout", "neither conditions nor clustering columns are known")
    plan = operation.plan(context.snapshot, options, RunContext.at(context.now))
    if plan.status != "pays" and (last_run is None or last_run.status != "pays"):
        return not_due("layout", plan.reason)
    return AssessedOperation(
        operation="layout",
        status="due",
        reason=plan.reason,
        options=plan.options,
        bytes_to_read=context.health.log_bytes,
    )
