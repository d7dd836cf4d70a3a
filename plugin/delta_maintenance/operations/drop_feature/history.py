"""What stands in the way of a feature in the history of a table, and when it can be cleaned away.

A version that used the feature goes like any other one, by `clean_log`; only the retention is that
of the table property made for this, and the cut-off counts to the minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.clean_log import CleanLogOptions, CleanLogPlan
from delta_maintenance.operations.drop_feature.traces import (
    HistoryTrace,
    clean_checkpoint,
    history_traces,
    outdated,
)
from delta_maintenance.protocol.changes.drop import FeatureRemoval
from delta_maintenance.table.commit.other_writers import OtherWriters
from delta_maintenance.table.read.history import read_commit_info
from delta_maintenance.table.read.log_age import file_times
from delta_maintenance.table.read.segment import list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

BARRIER = 3
"""Checkpoints between the last version that used a feature and the first one without: a client that
cannot read one tries the one before it, at most twice."""
EMPTY_COMMIT = "Empty Commit"
"""The operation that makes a version for a checkpoint; named as Delta Spark names it."""

_LOOKED_BACK = 100
"""Versions among which the rest of a barrier is looked for."""
_RETENTION = "delta.dropFeatureTruncateHistory.retentionDuration"
_LONGEST_TRANSACTION = timedelta(hours=24)
"""A writer that has stalled for longer than the log goes back could write a version anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOutlook:
    """What becomes of the versions that used a feature."""

    version: int
    """Up to which the log was searched."""
    traces: tuple[HistoryTrace, ...]
    """Files of the log that use it."""
    cleaning: CleanLogPlan | None = None
    """Takes all of them away at once; None where there are none, or where it is too early."""
    has_cut_off: bool = False
    """Whether there is a checkpoint behind all of them, which only has to get old enough."""
    ready_at: datetime | None = None
    """When that checkpoint is old enough; None where nobody can tell."""
    reason: str = ""
    """Why nothing can be cleaned away yet."""


def history_outlook(
    table: Table,
    snapshot: Snapshot,
    removal: FeatureRemoval,
    *,
    other_writers: OtherWriters | None,
    now: datetime,
    as_of: datetime | None = None,
) -> HistoryOutlook:
    """Searches the whole log. `RefusedError` where the table must not be truncated."""
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
    """What a run that was interrupted has left of the barrier: versions, oldest first.

    Each is an empty commit with a checkpoint, or the newest commit; of each the log shows that
    neither it nor anything since uses the feature. There are `BARRIER` of them at most.
    """
    store = snapshot.store
    listing = list_log(store, first_version=max(0, snapshot.version - _LOOKED_BACK))
    versions = {snapshot.version, *(files.version for files in listing.checkpoints)}
    left = [
        version
        for version in sorted(versions)
        if version in listing.commits and version <= snapshot.version
        if (info := read_commit_info(store, listing.commits[version])) is not None
        if info.operation == EMPTY_COMMIT
    ][-BARRIER:]
    if not left:
        return ()
    traces = history_traces(snapshot, removal, first_version=left[0])
    return tuple(version for version in left if outdated(traces, version))


def plan_truncation(
    snapshot: Snapshot,
    *,
    other_writers: OtherWriters | None,
    now: datetime,
    as_of: datetime | None = None,
) -> CleanLogPlan:
    """What of the history is old enough to go. `RefusedError` where none may go."""
    properties = snapshot.properties
    unread = [problem for problem in properties.problems if problem.startswith(_RETENTION)]
    if unread:
        raise _refused(snapshot, f"a property cannot be read: {unread[0]}", "correct the property")
    if not properties.enable_expired_log_cleanup:
        raise _refused(
            snapshot,
            "the table sets delta.enableExpiredLogCleanup to false, so that its history stays",
            "set it to true first, or drop the feature without truncating history",
        )
    retention = properties.drop_feature_retention
    if retention < _LONGEST_TRANSACTION and other_writers != "none":
        raise _refused(
            snapshot,
            f"{_RETENTION} is {retention}, in which a stalled writer may come back",
            "let it be 24 hours, or say that there are no other_writers",
        )
    options = CleanLogOptions(
        log_retention=retention,
        # Whoever asks for history to be truncated has said so.
        allow_short_retention=True,
        no_other_writers=True,
        as_of=as_of,
        to_the_minute=True,
    )
    return clean_log.plan(snapshot, options, now=now)


def ready_at(table: Table, snapshot: Snapshot, version: int) -> datetime | None:
    """When the log can be cut off at a version; None where nobody can tell."""
    # The younger of the two times of the commit counts, as it does for the clean-up.
    times = [file_times(list_log(table.store), now_ms=0)[version]]
    times.append(table.snapshot(version=version).timestamp_ms or 0)
    instant = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=max(times))
    return ready_after(snapshot, instant)


def ready_after(snapshot: Snapshot, instant: datetime) -> datetime | None:
    """When a version committed at the instant is old enough for the log to be cut off there."""
    whole = instant.replace(second=0, microsecond=0)
    minute = whole if whole == instant else whole + timedelta(minutes=1)
    try:
        return minute + snapshot.properties.drop_feature_retention
    except OverflowError:
        return None


def _refused(snapshot: Snapshot, problem: str, remedy: str) -> RefusedError:
    return RefusedError(problem, table=snapshot.table, version=snapshot.version, remedy=remedy)
