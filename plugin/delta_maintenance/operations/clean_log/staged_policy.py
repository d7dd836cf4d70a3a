"""The policy rule for the deletion of staged files."""

from __future__ import annotations

from pydantic import Field

from delta_maintenance.operations import clean_staged
from delta_maintenance.operations.clean_staged import CleanStagedOptions
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
    requests_to_list,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.policy_values import Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.quantities import duration_text


class CleanStagedRule(Rule):
    """When to delete staged files."""

    every: Duration = Field(default="1 day", validate_default=True)
    """The minimum time between two runs."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if there are staged files to delete, at most as often as the policy allows."""
    rule = context.rule("clean_staged", CleanStagedRule)
    if rule is None:
        return None
    options = context.options(CleanStagedOptions)
    plan = clean_staged.plan(context.snapshot, options, context=RunContext.at(context.now))
    if plan.is_noop:
        return not_due("clean-staged", plan.reason)
    files = sum(group.count for group in plan.groups)
    reason = count_text(files, "old staged file")
    _, due_at = context.since_last_run("clean-staged", rule.every)
    if due_at is not None:
        every = duration_text(rule.every)
        reason = f"{reason}, and the last clean-up was less than {every} ago"
        return not_due("clean-staged", reason, due_at)
    return AssessedOperation(
        operation="clean-staged",
        status="due",
        reason=reason,
        options=options,
        requests=requests_to_list(files) + 2 * files + 4,
        reclaims_files=files,
        reclaims_bytes=sum(group.bytes for group in plan.groups),
    )
