"""The policy rule for vacuums."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from delta_maintenance.clock import SKEW
from delta_maintenance.operations import health as table_health
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    block,
    not_due,
    requests_to_list,
    since,
)
from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.operations.core.policy_values import Bytes, Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.vacuum import LEAST_RETENTION, VacuumOptions
from delta_maintenance.quantities import duration_text

if TYPE_CHECKING:
    from delta_maintenance.table.read.snapshot import Snapshot

_OWN_SHARE = 0.5
"""The share of all files above which vacuum itself refuses."""


class VacuumRule(Rule):
    """When to delete files that no retained version needs."""

    every: Duration = Field(default="7 days", validate_default=True)
    """Due when the last vacuum is this long ago, or none is known."""
    min_reclaimable: Bytes | None = None
    """Due earlier if the log shows this many bytes of deletable files."""
    retention: Duration | None = None
    """By default the table's `delta.deletedFileRetentionDuration`, but at least a week; a shorter
    one is refused.
    """
    mode: Literal["full", "lite"] = "full"
    """`full` lists the table's folder; `lite` finds only files that the log records as removed."""
    archived: Literal["keep", "delete"] | None = None
    """Whether unreferenced files in archive classes are kept, the default, or deleted."""

    def promised(self, snapshot: Snapshot) -> Mapping[str, timedelta]:
        least = max(snapshot.properties.deleted_file_retention, LEAST_RETENTION)
        retention = self.retention
        return {"retention": retention} if retention is not None and retention > least else {}


def before(rule: VacuumRule) -> tuple[str, ...]:
    """A `lite` vacuum must run before a clean-up that would delete the commits it needs."""
    return ("clean-log",) if rule.mode == "lite" else ()


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due by the calendar, or earlier if enough bytes can be reclaimed."""
    rule, health = context.rule("vacuum", VacuumRule), context.health
    if rule is None:
        return None
    least = max(health.deleted_file_retention, LEAST_RETENTION)
    if rule.retention is not None and rule.retention < least:
        return block(
            "vacuum",
            f"the policy's retention of {duration_text(rule.retention)} is shorter than "
            f"{duration_text(least)}; set a longer one, or run vacuum manually",
        )
    remembered = context.last_run("vacuum")
    logged = table_health.last_vacuum(health.maintenance)
    times = (logged, remembered.at if remembered is not None else None)
    known_times = (time for time in times if time is not None)
    # One that a fast clock recorded does not hide the other.
    last_run = max(known_times, key=lambda time: (time - context.now <= SKEW, time), default=None)
    reason, due_at = since("vacuum", last_run, rule.every, context.now)
    enough = rule.min_reclaimable
    if due_at is not None and enough is not None and health.reclaimable_bytes >= max(1, enough):
        reclaimable = size_text(health.reclaimable_bytes)
        reason = f"{reclaimable} can be reclaimed, and the limit is {size_text(enough)}"
    elif due_at is not None:
        return not_due("vacuum", reason, due_at)
    mode = rule.mode
    if mode == "lite" and not _has_all_commits(context):
        mode = "full"
        reason += ", in full, because the log no longer contains all removals"
    share = context.rules.limits.max_deleted_share
    large = share is None or share > _OWN_SHARE
    options = context.options(VacuumOptions, rule, mode=mode, allow_large_delete=large)
    # Removals are searched for in the commits, also in those before the checkpoint.
    commits = next((each for each in health.log_files if each.kind == "commits"), None)
    return AssessedOperation(
        operation="vacuum",
        status="due",
        reason=reason,
        engine=vacuum.engine_for(context.snapshot, options),
        options=options,
        by_calendar=not health.reclaimable_files,
        bytes_to_read=health.checkpoint_bytes + (commits.bytes if commits else 0),
        requests=requests_to_list(health.num_files + health.tombstones)
        + 1
        + (commits.files if commits else 0)
        + requests_to_list(health.reclaimable_files),
        reclaims_files=health.reclaimable_files,
        reclaims_bytes=health.reclaimable_bytes,
    )


def _has_all_commits(context: EvaluationContext) -> bool:
    """Returns whether all commits exist that no `lite` vacuum has read yet."""
    # Imported here, because reading a policy must not load pyarrow.
    from delta_maintenance.operations.vacuum.references import last_vacuumed

    oldest = context.health.oldest_version
    if not oldest:
        return oldest == 0
    done = last_vacuumed(context.snapshot.log.store)
    return done is not None and done >= oldest - 1
