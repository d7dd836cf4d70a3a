"""The overview over all tables: what needs attention, their tiers, and what maintenance brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from delta_maintenance.operations.core.freed import freed_bytes
from delta_maintenance.policies.entries import BeforeAfter, PastRun
from delta_maintenance_airflow.health_page.anomalies import (
    ANOMALIES,
    TIERS,
    Anomaly,
    Tier,
    anomaly_of,
    tier_of,
)
from delta_maintenance_airflow.health_page.approvals import WaitingPlan
from delta_maintenance_airflow.health_page.rows import RowGroup, TableRow, group_by_cause

LATELY = timedelta(days=7)
STALE = timedelta(hours=3)
"""Without an assessment for this time, the Dag is considered stopped; by default it runs every
hour.
"""
RECENT = timedelta(hours=1)
"""If the oldest assessment is at most this much older than the newest, one time tells both."""
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """The sums over some runs; see the fields of `PastRun`."""

    runs: int
    failed_runs: int
    freed_bytes: int
    unfreed_bytes: int
    """Of deleted files whose storage is still paid for, or may be."""
    fewer_data_files: int
    fewer_files_to_open: int
    spared_bytes: int


def gains_of(runs: Iterable[PastRun], *, now: datetime) -> Gains:
    """What some runs brought, each for its table."""
    runs = tuple(runs)
    freed = sum(freed_bytes(run.freed, now) for run in runs)
    return Gains(
        runs=len(runs),
        failed_runs=sum(run.status == "failed" for run in runs),
        freed_bytes=freed,
        unfreed_bytes=sum(run.reclaimed_bytes for run in runs) - freed,
        fewer_data_files=_less(run.data_files for run in runs),
        fewer_files_to_open=_less(run.files_to_open for run in runs),
        spared_bytes=sum(run.spared_bytes for run in runs),
    )


def _less(numbers: Iterable[BeforeAfter | None]) -> int:
    return sum(change.less for change in numbers if change is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalousTables:
    """The tables whose worst anomaly is this one."""

    anomaly: Anomaly
    rows: tuple[TableRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """The number of tables by tier, and their anomalies, the worst first."""

    counts: dict[Tier, int]
    anomalies: tuple[AnomalousTables, ...]


def tiers_of(rows: Sequence[TableRow]) -> Tiers:
    """Sorts tables by their worst anomaly."""
    judged = [(row, anomaly_of(row)) for row in rows]
    counted = Counter(tier_of(row, anomaly) for row, anomaly in judged)
    by_key: dict[str, list[TableRow]] = {}
    for row, anomaly in judged:
        if anomaly is not None:
            by_key.setdefault(anomaly.key, []).append(row)
    return Tiers(
        counts={tier: counted[tier] for tier in TIERS},
        anomalies=tuple(
            AnomalousTables(anomaly=anomaly, rows=tuple(by_key[anomaly.key]))
            for anomaly in ANOMALIES
            if anomaly.key in by_key
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The contents of the overview."""

    tables: int
    failed: tuple[TableRow, ...]
    """Tables that failed or whose entry is unreadable, oldest failure first."""
    causes: tuple[RowGroup, ...]
    """The same tables by the reasons of their failures, those of most tables first."""
    unlisted: tuple[TableRow, ...]
    """Patterns that cannot be listed."""
    acknowledged: int
    """The number of tables and patterns whose failures are known."""
    plans: tuple[WaitingPlan, ...]
    """The plans that wait for an approval, those that have waited longest first."""
    blocked: int
    deferred: int
    """The number of tables on which all that is due waits because of the budget."""
    never_assessed: int
    last_assessed: datetime | None
    is_stale: bool
    """Whether no table was assessed recently."""
    oldest: TableRow | None
    """The table whose last assessment is the oldest."""
    tiers: Tiers
    gained: Gains
    """What the runs of the last days brought."""

    @property
    def is_well(self) -> bool:
        """Whether nothing needs attention."""
        return not (self.failed or self.unlisted or self.plans or self.is_stale)


def overview_of(rows: Sequence[TableRow], *, now: datetime) -> Overview:
    """The overview over the tables of the policy."""
    # Also of tables that are not in the policy: a person has asked about them.
    plans = [plan for row in rows for plan in row.plans]
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
    assessed = {row.assessment.assessed_at: row for row in rows if row.assessment is not None}
    newest = max(assessed, default=None)
    failed.sort(key=lambda row: (row.failing_since or now, row.name))
    return Overview(
        tables=len(tables),
        failed=tuple(failed),
        causes=tuple(sorted(group_by_cause(failed), key=lambda group: -len(group.rows))),
        unlisted=tuple(row for row in rows if row.is_pattern and row.status == "failed"),
        acknowledged=sum(row.status == "acknowledged" for row in rows),
        plans=tuple(sorted(plans, key=lambda each: (each.plan.due_since, each.plan.name))),
        blocked=sum(row.status == "blocked" for row in tables),
        deferred=sum(row.status == "deferred" for row in tables),
        never_assessed=sum(row.status == "never-assessed" for row in tables),
        last_assessed=newest,
        is_stale=newest is not None and now - newest > STALE,
        oldest=assessed[min(assessed)] if assessed else None,
        tiers=tiers_of(tables),
        gained=gains_of(lately, now=now),
    )
