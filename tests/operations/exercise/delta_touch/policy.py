"""The policy rule of `touch`."""

from __future__ import annotations

from datetime import timedelta

from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
)
from delta_maintenance.operations.core.policy_values import Duration
from delta_maintenance.operations.core.rules import Rule
from delta_touch import TouchOptions, operation


class TouchRule(Rule):
    """A version at least every so often."""

    every: Duration = timedelta(days=30)
    """The longest time without a version."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due once the newest version is older than the rule allows."""
    rule = context.rule("touch", TouchRule)
    if rule is None:
        return None
    options = context.options(TouchOptions, rule, older_than=rule.every)
    plan = operation.plan(context.snapshot, options, RunContext.at(context.now))
    if plan.is_noop:
        written = context.snapshot.timestamp
        due_at = None if written is None else written + rule.every
        return not_due("touch", plan.reason, due_at)
    return AssessedOperation(
        operation="touch",
        status="due",
        reason=plan.reason,
        engine=plan.engine,
        options=plan.options,
        requests=1,
    )
