"""The policy rule for checkpoints."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field

from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.core.policy_values import Bytes, Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.quantities import duration_text


class CheckpointRule(Rule):
    """When a checkpoint is due: as soon as one of the limits is reached."""

    max_commits: Annotated[int, Field(ge=1)] | None = 100
    """Maximum number of commits since the last checkpoint."""
    max_bytes: Bytes | None = None
    """Maximum size of these commits in bytes."""
    max_age: Duration | None = None
    """Maximum age of the oldest of these commits."""
    incremental: Literal["auto", "never"] = "auto"
    """For V2 checkpoints: `auto` takes over sidecars of the newest one if that writes less, `never`
    writes all of them."""

    def at_once(self) -> Self:
        return self.model_copy(update={"max_commits": 1})


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if the commits since the last checkpoint are too many, too large or too old."""
    rule, health = context.rule("checkpoint", CheckpointRule), context.health
    if rule is None:
        return None
    commits, size = health.commits_since_checkpoint, health.bytes_since_checkpoint
    oldest = health.oldest_commit_since_checkpoint
    due_at = oldest + rule.max_age if oldest is not None and rule.max_age is not None else None
    since = (
        "since the table's first version"
        if health.checkpoint_version is None
        else f"since the checkpoint of version {health.checkpoint_version}"
    )
    if commits and rule.max_commits is not None and commits >= rule.max_commits:
        reason = f"{count_text(commits, 'commit')} {since}, of {rule.max_commits} allowed"
    elif commits and rule.max_bytes is not None and size >= rule.max_bytes:
        reason = f"{size_text(size)} of commits {since}, of {size_text(rule.max_bytes)} allowed"
    elif rule.max_age is not None and due_at is not None and context.now >= due_at:
        reason = f"the oldest commit {since} is older than {duration_text(rule.max_age)}"
    else:
        return not_due("checkpoint", f"{count_text(commits, 'commit')} {since}", due_at)
    options = context.options(CheckpointOptions, rule)
    plan = checkpoint.plan(context.snapshot, options, context=RunContext.at(context.now))
    if plan.is_noop:
        return not_due("checkpoint", plan.reason)
    actions = health.num_files + health.tombstones
    sidecars = 0
    if plan.actions_per_sidecar:
        sidecars = math.ceil(actions / plan.actions_per_sidecar)
    return AssessedOperation(
        operation="checkpoint",
        status="due",
        reason=reason,
        engine=plan.engine,
        options=options,
        commits_to_replay=len(context.snapshot.log.segment.tail),
        commits_to_replay_after=0,
        bytes_to_read=plan.log_bytes,
        requests=health.files_to_open + sidecars + 3,
    )
