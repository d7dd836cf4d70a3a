"""The policy rule for publications."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
)
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.policy_values import Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.publish import PublishOptions
from delta_maintenance.quantities import duration_text


class PublishRule(Rule):
    """When commits are published and reported: as soon as one of the limits is reached."""

    max_commits: Annotated[int, Field(ge=1)] | None = 1
    """Maximum number of commits that are not reported to the catalog as published. Unity Catalog
    refuses further commits at 10."""
    max_age: Duration | None = None
    """Maximum age of the oldest of these commits."""

    def at_once(self) -> Self:
        return self.model_copy(update={"max_commits": 1})


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if the commits that are not reported as published are too many or too old."""
    rule, health = context.rule("publish", PublishRule), context.health
    commits, oldest = health.unreported_commits, health.oldest_unreported_commit
    if rule is None:
        return None
    if commits is None:
        return not_due("publish", "the commits of the table go through no catalog")
    reason = f"{count_text(commits, 'commit')} not reported to the catalog as published"
    due_at = oldest + rule.max_age if oldest is not None and rule.max_age is not None else None
    if commits and rule.max_commits is not None and commits >= rule.max_commits:
        reason = f"{reason}, of {rule.max_commits} allowed"
    elif due_at is not None and rule.max_age is not None and context.now >= due_at:
        reason = f"{reason}, the oldest of them for {duration_text(rule.max_age)}"
    else:
        return not_due("publish", reason, due_at)
    return AssessedOperation(
        operation="publish",
        status="due",
        reason=reason,
        options=PublishOptions(),
        requests=3 * commits,
    )
