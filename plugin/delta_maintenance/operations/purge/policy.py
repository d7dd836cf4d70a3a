"""The rule of a policy by which deleted rows are removed from the live data files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from delta_maintenance.operations import purge
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.evaluation import Look, given, not_due, since
from delta_maintenance.operations.core.policy_values import Bytes, Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.purge.options import PurgeOptions


class PurgeRule(Rule):
    """When files with deleted rows are rewritten without them."""

    every: Duration = Field(default="7 days", validate_default=True)
    """Not due before the last run is so long ago."""
    above_percent: Annotated[int, Field(ge=0, le=100)] = 0
    """Only files of which a larger percentage of rows is deleted."""
    dropped_columns: bool = True
    """Whether files with values of dropped columns are rewritten too; reads footers if columns were
    dropped."""
    where: str | None = None
    """A condition on partition columns; other partitions are left alone."""
    quiet_for: Duration | None = None
    """Partitions that were written to within this time are left alone."""
    max_bytes: Bytes | None = None
    """The most bytes of data files that one run reads."""
    max_duration: Duration | None = None
    """After this time a run begins no further work."""


def due(look: Look) -> AssessedOperation | None:
    """Due once a live file holds deleted rows or dropped columns."""
    rule = look.rule("purge", PurgeRule)
    if rule is None:
        return None
    last = look.last_run("purge")
    why, due_at = since("purge", None if last is None else last.at, rule.every, look.now)
    if due_at is not None:
        return not_due("purge", why, due_at)
    options = PurgeOptions(
        **given(
            where=rule.where,
            quiet_for=rule.quiet_for,
            max_bytes=rule.max_bytes,
            max_duration=rule.max_duration,
            above_percent=rule.above_percent,
            dropped_columns=rule.dropped_columns,
            other_writers=look.rules.other_writers,
        )
    ).validated()
    plan = purge.plan(look.snapshot, options, now=look.now)
    if plan.is_noop:
        return not_due("purge", plan.reason)
    return AssessedOperation(
        operation="purge",
        status="due",
        reason=plan.reason,
        options=options,
        bytes_to_read=plan.bytes,
        requests=2 * plan.files + 3 * plan.files_after,
    )
