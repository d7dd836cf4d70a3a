"""The rule of a policy for rows that expire."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations import expire
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    block,
    not_due,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.policy_values import Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.expire import ExpireOptions

_NAME = "expire"
_REQUESTS_PER_FILE = 3


class ExpireRule(Rule):
    """Which rows expire, and when they are removed."""

    every: Duration = Field(default="1 day", validate_default=True)
    """The shortest time between two runs."""
    approval: bool = True
    """Whether rows are removed only after an approval."""
    then: tuple[Literal["purge", "vacuum"], ...] = ()
    """What removes the rows from files with deletion vectors, and the files from the store: `purge`
    and `vacuum` run as often as `every`, unless they have rules of their own."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if rows of a file have expired, according to the log."""
    rule = context.rule(_NAME, ExpireRule)
    if rule is None:
        return None
    calendar_reason, due_at = context.since_last_run(_NAME, rule.every)
    if due_at is not None:
        return not_due(_NAME, calendar_reason, due_at)
    try:
        options = context.options(ExpireOptions, rule, allow_large_delete=True)
        plan = expire.plan(context.snapshot, options, context=RunContext.at(context.now))
    except InvalidRequestError as error:
        return block(_NAME, f"{error.problem}; {error.remedy}")
    if plan.is_noop:
        return not_due(_NAME, plan.reason)
    return AssessedOperation(
        operation=_NAME,
        status="due",
        reason=plan.reason,
        options=plan.options,
        requests=_REQUESTS_PER_FILE * plan.files_to_read + 3 * plan.commits,
        reclaims_files=plan.files,
        reclaims_bytes=plan.bytes,
    )
