"""The overview over all tables: problems that need attention, and the effect of maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from delta_maintenance.policies.approval import PendingPlan
from delta_maintenance_airflow.health_page.rows import TableRow

LATELY = timedelta(days=7)
STALE = timedelta(hours=3)
"""Without an assessment for this time, the Dag is considered stopped; by default it runs every
hour.
"""
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The contents of the overview."""

    tables: int
    failed: tuple[TableRow, ...]
    """Tables that failed or whose entry is unreadable, oldest failure first."""
    unlisted: tuple[TableRow, ...]
    """Patterns that cannot be listed."""
    waiting: tuple[TableRow, ...]
    """Tables with operations that wait for an approval."""
    plans: tuple[PendingPlan, ...]
    """The plans that wait for an approval, those that have waited longest first."""
    blocked: int
    never_assessed: int
    last_assessed: datetime | None
    is_stale: bool
    """Whether no table was assessed recently."""
    runs: int
    """Runs of the last days that did something or failed."""
    failed_runs: int
    reclaimed_bytes: int
    spared_bytes: int

    @property
    def is_well(self) -> bool:
        """Whether nothing needs attention."""
        return not (self.failed or self.unlisted or self.waiting or self.is_stale)


def overview_of(rows: Sequence[TableRow], *, now: datetime) -> Overview:
    """The overview over the tables of the policy."""
    rows = [row for row in rows if row.in_policy]
    tables = [row for row in rows if not row.is_pattern]
    failed = [row for row in tables if row.status in ("failed", "unreadable")]
    lately = [
        run
        for row in tables
        if row.entry is not None
        for run in row.entry.history
        if now - run.at <= LATELY
    ]
    plans = [
        plan
        for row in tables
        if row.entry is not None
        for plan in row.entry.pending
        if plan.operation in row.waiting
    ]
    assessed = [row.assessment.assessed_at for row in rows if row.assessment is not None]
    last = max(assessed, default=None)
    return Overview(
        tables=len(tables),
        failed=tuple(sorted(failed, key=lambda row: (row.failing_since or now, row.name))),
        unlisted=tuple(row for row in rows if row.is_pattern),
        waiting=tuple(row for row in tables if row.waiting),
        plans=tuple(sorted(plans, key=lambda plan: (plan.due_since, plan.name))),
        blocked=sum(row.status == "blocked" for row in tables),
        never_assessed=sum(row.status == "never-assessed" for row in tables),
        last_assessed=last,
        is_stale=last is not None and now - last > STALE,
        runs=len(lately),
        failed_runs=sum(run.status == "failed" for run in lately),
        reclaimed_bytes=sum(run.reclaimed_bytes for run in lately),
        spared_bytes=sum(run.spared_bytes for run in lately),
    )
