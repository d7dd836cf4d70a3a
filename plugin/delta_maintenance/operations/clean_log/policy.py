"""The policy rule for log clean-ups."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import Field

from delta_maintenance.operations.clean_log import LEAST_RETENTION, CleanLogOptions
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    block,
    not_due,
    requests_to_list,
)
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.policy_values import Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.quantities import duration_text

if TYPE_CHECKING:
    from delta_maintenance.table.read.snapshot import Snapshot


class CleanLogRule(Rule):
    """When to delete history past its retention."""

    retention: Duration | None = None
    """By default the table's `delta.logRetentionDuration`; a shorter one is refused."""
    every: Duration = Field(default="1 day", validate_default=True)
    """The minimum time between two runs."""

    def promised(self, snapshot: Snapshot) -> Mapping[str, timedelta]:
        least = max(snapshot.properties.log_retention, LEAST_RETENTION)
        retention = self.retention
        return {"log_retention": retention} if retention is not None and retention > least else {}


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if the log has files past their retention, at most as often as the policy allows."""
    rule, health = context.rule("clean_log", CleanLogRule), context.health
    if rule is None:
        return None
    least = max(health.log_retention, LEAST_RETENTION)
    if rule.retention is not None and rule.retention < least:
        return block(
            "clean-log",
            f"the policy's log retention of {duration_text(rule.retention)} is shorter than "
            f"{duration_text(least)}; set the table's delta.logRetentionDuration, or take a longer "
            "one",
        )
    if not health.expired_log_files:
        return not_due("clean-log", "the log retention covers the whole log")
    _, due_at = context.since_last_run("clean-log", rule.every)
    expired = f"{count_text(health.expired_log_files, 'file')} of the log past the retention"
    if due_at is not None:
        return not_due(
            "clean-log",
            f"{expired}, and the last one was less than {duration_text(rule.every)} ago",
            due_at,
        )
    return AssessedOperation(
        operation="clean-log",
        status="due",
        reason=expired,
        options=context.options(CleanLogOptions, rule, log_retention=rule.retention),
        bytes_to_read=health.checkpoint_bytes,
        requests=requests_to_list(health.expired_log_files) + 6,
        reclaims_files=health.expired_log_files,
        reclaims_bytes=health.expired_log_bytes,
    )
