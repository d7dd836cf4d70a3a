"""The policy rule for integrity checks."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
    requests_to_list,
)
from delta_maintenance.operations.core.policy_values import Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.fsck import FsckOptions


class FsckRule(Rule):
    """When to check the table. While it is held back because of corruption, all data files are
    opened, whatever `sample` says.
    """

    every: Duration = Field(default="30 days", validate_default=True)
    """Due when the last check is this long ago, or none is known."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due by the calendar, and while the table is held back because of corruption."""
    rule = context.rule("fsck", FsckRule)
    if rule is None:
        return None
    reason, due_at = context.since_last_run("fsck", rule.every)
    corrupt = [run.operation for run in context.last_runs.values() if run.corruption is not None]
    if corrupt:
        reason = f"{corrupt[0]} reported corruption"
    elif due_at is not None:
        return not_due("fsck", reason, due_at)
    engine = context.rules.engine
    options = context.options(FsckOptions, rule, other_writers=None)
    if corrupt:
        # A sample without findings says nothing about the files that others are in.
        options = replace(options, sample=None)
    health = context.health
    files = min(health.num_files, options.sample or health.num_files)
    many = engine.prefer == "spark" or (
        engine.prefer == "auto" and files >= options.auto_spark_files
    )
    vectors = min(health.files_with_deletion_vector, files)
    opened = files + vectors if options.deep else 0
    listings = requests_to_list(health.num_files + health.tombstones) + 1
    return AssessedOperation(
        operation="fsck",
        status="due",
        reason=reason,
        engine="spark" if options.deep and many else "local",
        options=options,
        by_calendar=not corrupt,
        bytes_to_read=health.log_bytes,
        requests=sum(kind.files for kind in health.log_files) + listings + opened,
    )
