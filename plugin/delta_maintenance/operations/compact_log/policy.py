"""The policy rule for log compactions."""

from __future__ import annotations

from delta_maintenance.operations import compact_log
from delta_maintenance.operations.compact_log import CompactLogOptions
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.rules import Rule


class CompactLogRule(Rule):
    """Log compactions, due as soon as one window is complete and no checkpoint is due."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due once a window is complete that no earlier run has tried."""
    rule = context.rule("compact_log", CompactLogRule)
    if rule is None:
        return None
    if context.is_due("checkpoint"):
        return not_due("compact-log", "the checkpoint that is due leaves nothing to compact")
    options = context.options(CompactLogOptions, rule)
    plan = compact_log.plan(context.snapshot, options, context=RunContext.at(context.now))
    last_run = context.last_run("compact-log")
    # Windows without remaining actions, and windows with contradictory commits, are skipped.
    tried = -1 if last_run is None else last_run.version
    windows = [window for window in plan.windows if window.last_version > tried]
    if not windows:
        return not_due("compact-log", plan.reason if plan.is_noop else "nothing new to compact")
    commits = sum(window.last_version - window.first_version + 1 for window in windows)
    replayed = len(context.snapshot.log.segment.tail)
    return AssessedOperation(
        operation="compact-log",
        status="due",
        reason=plan.reason,
        engine=plan.engine,
        options=options,
        commits_to_replay=replayed,
        commits_to_replay_after=replayed - commits + len(windows),
        bytes_to_read=plan.log_bytes,
        requests=commits + len(windows) + 2,
    )
