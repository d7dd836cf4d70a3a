"""The rule of a policy by which small data files are merged."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from delta_maintenance.operations import optimize
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.evaluation import Look, given, not_due, since
from delta_maintenance.operations.core.policy_values import Bytes, Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.optimize.options import OptimizeOptions
from delta_maintenance.operations.rewriting.models import DELETED_ROWS


class OptimizeRule(Rule):
    """When small data files are merged."""

    every: Duration = Field(default="1 day", validate_default=True)
    """Not due before the last run is so long ago."""
    min_files_saved: Annotated[int, Field(ge=1)] = 10
    """Due once the table would have so many files fewer."""
    deleted_percent: Annotated[int, Field(ge=0, le=100)] = 5
    """Due, too, once a larger percentage of the rows of any file is deleted."""
    target_bytes: Bytes | None = None
    """The size of new files; by default the table's `delta.targetFileSize`, else 128 MiB to 1 GiB
    by the size of the table."""
    min_files: Annotated[int, Field(ge=2)] = 2
    """Small files that a partition must have before they are merged."""
    where: str | None = None
    """A condition on partition columns; other partitions are left alone."""
    quiet_for: Duration | None = None
    """Partitions that were written to within this time are left alone."""
    max_bytes: Bytes | None = None
    """The most bytes of data files that one run reads."""
    max_duration: Duration | None = None
    """After this time a run begins no further work."""


def due(look: Look) -> AssessedOperation | None:
    """Due once enough files would be saved, or a file has too many deleted rows."""
    rule = look.rule("optimize", OptimizeRule)
    if rule is None:
        return None
    last = look.last_run("optimize")
    why, due_at = since("optimize", None if last is None else last.at, rule.every, look.now)
    if due_at is not None:
        return not_due("optimize", why, due_at)
    options = OptimizeOptions(
        **given(
            where=rule.where,
            quiet_for=rule.quiet_for,
            max_bytes=rule.max_bytes,
            max_duration=rule.max_duration,
            target_bytes=rule.target_bytes,
            min_files=rule.min_files,
            deleted_percent=rule.deleted_percent,
            other_writers=look.rules.other_writers,
        )
    ).validated()
    plan = optimize.plan(look.snapshot, options, now=look.now)
    saved = plan.files - plan.files_after
    deleted = any(each.reason == DELETED_ROWS for each in plan.reasons)
    if saved < rule.min_files_saved and not deleted:
        return not_due(
            "optimize", f"a run would save {saved} files, of {rule.min_files_saved} asked for"
        )
    return AssessedOperation(
        operation="optimize",
        status="due",
        reason=plan.reason,
        options=options,
        bytes_to_read=plan.bytes,
        requests=2 * plan.files + 3 * plan.files_after,
    )
