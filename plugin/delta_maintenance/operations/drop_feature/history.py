"""Finds the traces of a feature in the history of a table, and when they can be deleted.

`clean_log` deletes versions that used the feature like other versions, but with the retention of
`delta.dropFeatureTruncateHistory.retentionDuration` and with a boundary rounded to the minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from delta_maintenance import clock
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.clean_log import CleanLogOptions, CleanLogPlan
from delta_maintenance.operations.core.facts import duration_text
from delta_maintenance.operations.drop_feature.traces import (
    HistoryTrace,
    clean_checkpoint,
    history_traces,
    outdated,
)
from delta_maintenance.protocol.changes.drop import FeatureRemoval
from delta_maintenance.table.commit.other_writers import OtherWriters
from delta_maintenance.table.read.history import file_times, read_commit_info, told_time
from delta_maintenance.table.read.log_file import relisting
from delta_maintenance.table.read.segment import list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

BARRIER = 3
"""The number of checkpoints between the last version that used a feature and the first version
without it: a client that cannot read a checkpoint tries the one before it, at most twice."""
EMPTY_COMMIT = "Empty Commit"
"""The operation that adds a version for a checkpoint. Delta Spark uses the same name."""

_LOOKED_BACK = 100
"""The number of latest versions that are searched for an incomplete barrier."""
_RETENTION = "delta.dropFeatureTruncateHistory.retentionDuration"
_LONGEST_TRANSACTION = timedelta(hours=24)
"""The assumed maximum duration of a transaction. A writer that stalled for longer than the log
retention could write a deleted version again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOutlook:
    """The state of the versions that used a feature."""

    version: int
    """The version up to which the log was searched."""
    traces: tuple[HistoryTrace, ...]
    """The files of the log that use the feature."""
    cleaning: CleanLogPlan | None = None
    """Deletes all of them at once; None if there are none, or if it is too early."""
    has_cut_off: bool = False
    """Whether a checkpoint follows all of them, which only needs to become old enough."""
    ready_at: datetime | None = None
    """The instant at which that checkpoint is old enough; None if unknown."""
    reason: str = ""
    """The reason why no history can be deleted yet."""


def history_outlook(
    table: Table,
    snapshot: Snapshot,
    removal: FeatureRemoval,
    *,
    other_writers: OtherWriters | None,
    now: datetime,
    as_of: datetime | None = None,
) -> HistoryOutlook:
    """Searches the whole log. Raises `RefusedError` if the history must not be truncated."""
    cleaning = plan_truncation(snapshot, other_writers=other_writers, now=now, as_of=as_of)
    traces = history_traces(snapshot, removal)
    if not traces:
        return HistoryOutlook(version=snapshot.version, traces=())
    if cleaning.oldest_version is not None and outdated(traces, cleaning.oldest_version):
        return HistoryOutlook(version=snapshot.version, traces=traces, cleaning=cleaning)
    listing = list_log(snapshot.store)
    cut_off = clean_checkpoint(listing, traces)
    return HistoryOutlook(
        version=snapshot.version,
        traces=traces,
        has_cut_off=cut_off is not None,
        ready_at=None if cut_off is None else ready_at(table, snapshot, cut_off.version),
        reason=cleaning.reason,
    )


def standing_barrier(snapshot: Snapshot, removal: FeatureRemoval) -> tuple[int, ...]:
    """Returns the versions of the barrier that an interrupted run has left, oldest first.

    Each is an empty commit with a checkpoint, or the newest commit. The log shows that neither it
    nor any later version uses the feature. Returns at most `BARRIER` versions.
    """
    left = relisting(lambda: _empty_commits(snapshot))[-BARRIER:]
    if not left:
        return ()
    traces = history_traces(snapshot, removal, first_version=left[0])
    return tuple(version for version in left if outdated(traces, version))


def _empty_commits(snapshot: Snapshot) -> list[int]:
    """Returns the latest versions that may belong to a barrier.

    Raises `FileNotFoundError` if a commit was deleted in the meantime.
    """
    store = snapshot.store
    listing = list_log(store, first_version=max(0, snapshot.version - _LOOKED_BACK))
    versions = {snapshot.version, *(files.version for files in listing.checkpoints)}
    return [
        version
        for version in sorted(versions)
        if version in listing.commits and version <= snapshot.version
        if (info := read_commit_info(store, listing.commits[version])) is not None
        if info.operation == EMPTY_COMMIT
    ]


def plan_truncation(
    snapshot: Snapshot,
    *,
    other_writers: OtherWriters | None,
    now: datetime,
    as_of: datetime | None = None,
) -> CleanLogPlan:
    """Plans to delete the history that is old enough. Raises `RefusedError` if there is none."""
    properties = snapshot.properties
    unread = [problem for problem in properties.problems if problem.startswith(_RETENTION)]
    if unread:
        raise _refused(snapshot, f"a property cannot be read: {unread[0]}", "correct the property")
    if not properties.enable_expired_log_cleanup:
        raise _refused(
            snapshot,
            "the table sets delta.enableExpiredLogCleanup to false, which keeps its history",
            "set it to true first, or drop the feature without truncating history",
        )
    retention = properties.drop_feature_retention
    if retention < _LONGEST_TRANSACTION and other_writers != "none":
        raise _refused(
            snapshot,
            f"{_RETENTION} is {duration_text(retention)}, after which a stalled writer could "
            "still commit",
            "set it to 24 hours or more, or set other_writers to none",
        )
    options = CleanLogOptions(
        log_retention=retention,
        # The request to truncate history implies a short retention.
        allow_short_retention=True,
        no_other_writers=True,
        as_of=as_of,
        to_the_minute=True,
    )
    return clean_log.plan(snapshot, options, now=now)


def ready_at(table: Table, snapshot: Snapshot, version: int) -> datetime | None:
    """Returns the instant from which history before a version can be deleted; None if unknown."""
    # The latest of all timestamps of the commit counts, as in the clean-up.
    time_ms = file_times(list_log(table.store), now_ms=0).get(version)
    if time_ms is None:
        # The commit has just been deleted.
        return None
    times = [time_ms]
    times.append(told_time(table.snapshot(version=version).state.commit_info) or 0)
    instant = clock.instant(max(times))
    return ready_after(snapshot, instant)


def ready_after(snapshot: Snapshot, instant: datetime) -> datetime | None:
    """Returns the instant from which history before a version committed at `instant` can be
    deleted; None if it is beyond the calendar.
    """
    whole = instant.replace(second=0, microsecond=0)
    minute = whole if whole == instant else whole + timedelta(minutes=1)
    try:
        return minute + snapshot.properties.drop_feature_retention
    except OverflowError:
        return None


def _refused(snapshot: Snapshot, problem: str, remedy: str) -> RefusedError:
    return RefusedError(problem, table=snapshot.table, version=snapshot.version, remedy=remedy)
