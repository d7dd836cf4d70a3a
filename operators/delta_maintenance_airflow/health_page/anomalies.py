"""What is wrong with each table: one named anomaly, the worst, and its tier.

Judged by what the last assessment kept; no table is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from delta_maintenance.operations.health.models import BACKLOG_COMMITS, MOST_UNREPORTED, TableHealth
from delta_maintenance_airflow.health_page.rows import TableRow

Tier = Literal["critical", "warning", "healthy", "unknown"]
TIERS: tuple[Tier, ...] = get_args(Tier)
"""The worst first; `unknown` is a table without an assessment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """A kind of trouble that a table can have."""

    key: str
    title: str
    tier: Tier
    meaning: str
    """When a table has it, as one clause."""
    holds: Callable[[TableRow], bool]


NO_CHECKPOINT_COMMITS = 100
OLD_CHECKPOINT_COMMITS = 500
"""As the alert `DeltaCheckpointsMissing`."""
REPLAY_BYTES = 256 << 20
DELETED_ROWS_SHARE = 0.1
SMALL_SHARE, SMALL_FILES = 0.5, 100
DEAD_SHARE = 0.25
EXPIRED_LOG_FILES = 1_000


def _of_health(holds: Callable[[TableHealth], bool]) -> Callable[[TableRow], bool]:
    return lambda row: row.health is not None and holds(row.health)


def _findings(row: TableRow) -> Iterator[Mapping[str, Any]]:
    """Yields the counts of the last fsck; to read all of each report would take long."""
    for report in row.entry.reports if row.entry is not None else ():
        if report.operation == "fsck" and report.result is not None:
            yield from (
                finding for finding in report.result.get("counts", ()) if finding.get("count")
            )


def _has_invalid_statistics(row: TableRow) -> bool:
    """By the rule `statistics`, or by the last fsck."""
    operations = row.assessment.operations if row.assessment is not None else ()
    # Without options, the operation is blocked before anything was found.
    planned = any(
        item.operation == "recompute-stats" and item.status != "not-due" and item.options
        for item in operations
    )
    return planned or any(item.get("kind") == "invalid-statistics" for item in _findings(row))


def _is_unreadable(row: TableRow) -> bool:
    failed = row.assessment is not None and row.assessment.status == "failed"
    return row.status == "unreadable" or (failed and row.status != "acknowledged")


def _is_corrupt(row: TableRow) -> bool:
    return any(finding.get("severity") == "corrupt" for finding in _findings(row))


def _frees_nothing(row: TableRow) -> bool:
    runs = row.entry.last_runs if row.entry is not None else ()
    return any(run.freed is not None and run.freed.state == "never" for run in runs)


def _has_deleted_rows(health: TableHealth) -> bool:
    """By files with deletion vectors if the rows are not counted."""
    share = health.deleted_rows_share
    return (health.deletion_vector_share if share is None else share) > DELETED_ROWS_SHARE


ANOMALIES: tuple[Anomaly, ...] = (
    Anomaly(
        key="invalid-statistics",
        title="Invalid statistics",
        tier="critical",
        meaning="statistics of data files are missing or wrong, by the rule statistics or by fsck",
        holds=_has_invalid_statistics,
    ),
    Anomaly(
        key="broken",
        title="Cannot be read",
        tier="critical",
        meaning="the last assessment failed, or its file is damaged",
        holds=_is_unreadable,
    ),
    Anomaly(
        key="corrupt",
        title="History broken",
        tier="critical",
        meaning="fsck found the table corrupt",
        holds=_is_corrupt,
    ),
    Anomaly(
        key="failing",
        title="Maintenance fails",
        tier="critical",
        meaning="the last run failed, and its work is still due",
        holds=lambda row: row.status == "failed",
    ),
    Anomaly(
        key="writers-wait",
        title="Writers wait",
        tier="critical",
        meaning=f"{MOST_UNREPORTED} commits are not reported to the catalog as published, and it "
        "refuses further ones",
        holds=_of_health(lambda health: (health.unreported_commits or 0) >= MOST_UNREPORTED),
    ),
    Anomaly(
        key="unsafe-commits",
        title="Unsafe commits",
        tier="critical",
        meaning="Delta Spark commits on S3 without the log store that the policy counts on",
        holds=_of_health(lambda health: bool(health.unsafe_commits)),
    ),
    Anomaly(
        key="no-checkpoint",
        title="No checkpoint",
        tier="critical",
        meaning=f"there is none, and more than {NO_CHECKPOINT_COMMITS} commits",
        holds=_of_health(
            lambda health: (
                health.checkpoint_version is None
                and health.commits_since_checkpoint > NO_CHECKPOINT_COMMITS
            )
        ),
    ),
    Anomaly(
        key="old-checkpoint",
        title="No recent checkpoint",
        tier="critical",
        meaning=f"more than {OLD_CHECKPOINT_COMMITS} commits since the last one",
        holds=_of_health(lambda health: health.commits_since_checkpoint > OLD_CHECKPOINT_COMMITS),
    ),
    Anomaly(
        key="publication-backlog",
        title="Publication backlog",
        tier="warning",
        meaning=f"{BACKLOG_COMMITS} or more commits are not reported to the catalog as published",
        holds=_of_health(lambda health: (health.unreported_commits or 0) >= BACKLOG_COMMITS),
    ),
    Anomaly(
        key="deleted-rows",
        title="Many deleted rows",
        tier="warning",
        meaning=f"deletion vectors delete more than {DELETED_ROWS_SHARE:.0%} of the rows",
        holds=_of_health(_has_deleted_rows),
    ),
    Anomaly(
        key="small-files",
        title="Many small files",
        tier="warning",
        meaning=f"more than {SMALL_FILES} files, and more than {SMALL_SHARE:.0%} of all, are small",
        holds=_of_health(
            lambda health: (
                health.small_files > SMALL_FILES and health.small_file_share > SMALL_SHARE
            )
        ),
    ),
    Anomaly(
        key="replay-bytes",
        title="Long log to read",
        tier="warning",
        meaning=f"a reader opens more than {REPLAY_BYTES >> 20} MiB of log",
        holds=_of_health(lambda health: health.bytes_to_open > REPLAY_BYTES),
    ),
    Anomaly(
        key="frees-nothing",
        title="Deletes free nothing",
        tier="warning",
        meaning="the store keeps the contents of deleted files, and no rule ends that",
        holds=_frees_nothing,
    ),
    Anomaly(
        key="dead-files",
        title="Dead files",
        tier="warning",
        meaning=f"a vacuum could delete more than {DEAD_SHARE:.0%} of the bytes of the live files",
        holds=_of_health(lambda health: health.reclaimable_bytes > DEAD_SHARE * health.total_bytes),
    ),
    Anomaly(
        key="retention",
        title="Retention not kept",
        tier="warning",
        meaning=f"more than {EXPIRED_LOG_FILES:,} files of the log are past its retention",
        holds=_of_health(lambda health: health.expired_log_files > EXPIRED_LOG_FILES),
    ),
    Anomaly(
        key="acknowledged",
        title="Known broken",
        tier="warning",
        meaning="it fails, and a person has acknowledged the failure",
        holds=lambda row: row.status == "acknowledged",
    ),
)
"""The worst first."""


def anomaly_of(row: TableRow) -> Anomaly | None:
    """Returns the worst anomaly of a table; None if it has none."""
    return next((anomaly for anomaly in ANOMALIES if anomaly.holds(row)), None)


def tier_of(row: TableRow, anomaly: Anomaly | None) -> Tier:
    """Returns the tier of a table with its worst anomaly."""
    if anomaly is not None:
        return anomaly.tier
    return "healthy" if row.health is not None else "unknown"


def is_named(row: TableRow, name: str) -> bool:
    """Whether a table has the anomaly of a key, or is in the tier of a name."""
    anomaly = anomaly_of(row)
    return name == (anomaly.key if name not in TIERS and anomaly else tier_of(row, anomaly))
