"""The newest commits of a log as a bounded series, and the maintenance that they show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from delta_maintenance import clock
from delta_maintenance.address import StoreKind
from delta_maintenance.errors import CorruptTableError, shorten
from delta_maintenance.operations.health.models import (
    CommitPoint,
    MaintenanceSeen,
    SparkCommit,
    TableHealth,
)
from delta_maintenance.protocol.actions.model import CommitInfo
from delta_maintenance.protocol.delta_log.file_names import commit_name
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.ndjson.split import parse_other_lines, split
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.commit.other_writers import LOG_STORE_MARK, is_delta_spark
from delta_maintenance.table.read.history import adjusted_times
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry, read_ahead, read_listed
from delta_maintenance.table.read.managed_log import ManagedStore
from delta_maintenance.table.read.segment import LogListing
from delta_maintenance.table.read.snapshot import Snapshot

MAINTENANCE_OPERATIONS = frozenset(
    {
        "ADD CONSTRAINT",
        "COMPUTE STATS",
        "DROP FEATURE",
        "FSCK",
        "OPTIMIZE",
        "PURGE",
        "REORG",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    }
)
"""Operation names that engines use for commits that change no rows."""

_WHOLE = 256 << 10
_HEAD = 64 << 10
"""The number of bytes read of a larger commit: its `commitInfo` is usually at the beginning."""
_MOST_SPARK_COMMITS = 10
_MOST_ENGINE = 80


@dataclass(frozen=True, slots=True)
class CommitSeries:
    """The newest commits as a series."""

    points: tuple[CommitPoint, ...]
    """Oldest first."""
    maintenance: tuple[MaintenanceSeen, ...]
    """The last of each combination of operation and result, newest first."""
    spark_commits: tuple[SparkCommit, ...]
    """Newest first."""
    warnings: tuple[str, ...]


def commits_a_day(points: Sequence[CommitPoint], *, now: datetime) -> float:
    """Returns the rate of these commits, the oldest first; 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    days: float = (now - points[0].timestamp) / timedelta(days=1)
    return round(len(points) / max(days, 1.0), 3)


def commit_series(
    snapshot: Snapshot, listing: LogListing, *, max_commits: int, previous: TableHealth | None
) -> CommitSeries:
    """The series up to the newest listed commit. Commits in `previous` are not read again.

    An unreadable commit and all commits before it have no operation.
    """
    versions = sorted(listing.commits)[-max_commits:] if max_commits else []
    if previous is not None and not _continues(previous, listing):
        previous = None
    previous_points = (
        {point.version: point for point in previous.commits} if previous is not None else {}
    )
    unread = [listing.commits[version] for version in versions if version not in previous_points]
    infos, warnings = _infos(snapshot.log.store, unread)
    times = _times(snapshot, listing, infos)
    checkpoints = {checkpoint.version for checkpoint in listing.checkpoints}
    compactions = {entry.file.end_version for entry in listing.compactions}
    points = []
    maintenance = []
    for version in versions:
        if version in infos or version not in previous_points:
            info = infos.get(version)
            timestamp, operation = times[version], info.operation if info is not None else None
        else:
            info = None
            timestamp, operation = (
                previous_points[version].timestamp,
                previous_points[version].operation,
            )
        point = CommitPoint(
            version=version,
            timestamp=timestamp,
            bytes=listing.commits[version].status.size,
            operation=operation,
            is_checkpoint=version in checkpoints,
            is_compaction=version in compactions,
        )
        points.append(point)
        if info is not None and operation in MAINTENANCE_OPERATIONS:
            maintenance.append(_seen(point, info))
    return CommitSeries(
        points=tuple(points),
        maintenance=_last_of_each([*(previous.maintenance if previous else ()), *maintenance]),
        spark_commits=(
            *_spark_commits(snapshot.log.store, points, infos),
            *(previous.spark_commits if previous else ()),
        )[:_MOST_SPARK_COMMITS],
        warnings=warnings,
    )


def _spark_commits(
    store: Store, points: Iterable[CommitPoint], infos: Mapping[int, CommitInfo | None]
) -> Iterator[SparkCommit]:
    """Yields the newest commits of Delta Spark on S3, each after one request for its mark."""
    if store.address.kind is not StoreKind.S3 or isinstance(store, ManagedStore):
        return
    engines = {version: info.values.get("engineInfo") for version, info in infos.items() if info}
    newest = [point for point in points if is_delta_spark(engines.get(point.version))]
    for point in reversed(newest[-_MOST_SPARK_COMMITS:]):
        status = store.stat(f"{LOG_DIRECTORY}/{commit_name(point.version)}")
        # None if it was cleaned up since the listing.
        if status is not None:
            yield SparkCommit(
                version=point.version,
                timestamp=point.timestamp,
                engine=shorten(str(engines[point.version]), _MOST_ENGINE),
                is_conditional=LOG_STORE_MARK in (status.metadata or {}).items(),
            )


def _continues(previous: TableHealth, listing: LogListing) -> bool:
    """Whether a log has the commits of an earlier measurement, except those that were deleted.

    A table that was replaced by a copy of an earlier state has other ones, with the same table ID.
    """
    sizes = {version: entry.status.size for version, entry in listing.commits.items()}
    is_equal = all(sizes.get(p.version, p.bytes) == p.bytes for p in previous.commits)
    return is_equal and previous.version <= max(sizes, default=-1)


def _infos(
    store: Store, entries: list[LogEntry]
) -> tuple[dict[int, CommitInfo | None], tuple[str, ...]]:
    infos: dict[int, CommitInfo | None] = {}
    try:
        for entry, info in read_ahead(store, entries, lambda entry: _info(store, entry)):
            assert entry.file.version is not None
            infos[entry.file.version] = info
    except CorruptTableError as error:
        return infos, (f"{error.file} cannot be read: {error.problem}",)
    return infos, ()


def _info(store: Store, entry: LogEntry) -> CommitInfo | None:
    try:
        data = _beginning(store, entry)
    except FileNotFoundError:
        # Cleaned up since the listing.
        return None
    if not data:
        return None
    return parse_other_lines(split(entry.path, data), commit_info=True)[0].commit_info


def _beginning(store: Store, entry: LogEntry) -> bytes:
    if 0 < entry.status.size <= _WHOLE:
        return read_listed(store, entry.status)
    with store.open(entry.path) as file:
        data = file.read(_HEAD)
    # Drops the last line, which is incomplete.
    return data[: data.rfind(b"\n") + 1]


def _times(
    snapshot: Snapshot, listing: LogListing, infos: Mapping[int, CommitInfo | None]
) -> dict[int, datetime]:
    times = adjusted_times(listing)
    if in_commit_timestamps.is_active(snapshot.protocol, snapshot.metadata.configuration):
        enablement_version = snapshot.properties.in_commit_timestamp_enablement_version or 0
        for version, info in infos.items():
            commit_time = info.in_commit_timestamp if info is not None else None
            if version >= enablement_version and commit_time is not None:
                times[version] = commit_time
    return {version: clock.instant(ms) for version, ms in times.items()}


def _seen(point: CommitPoint, info: CommitInfo) -> MaintenanceSeen:
    parameters = info.values.get("operationParameters")
    status = parameters.get("status") if isinstance(parameters, Mapping) else None
    return MaintenanceSeen(
        operation=point.operation or "",
        version=point.version,
        timestamp=point.timestamp,
        result=status if isinstance(status, str) else None,
    )


def _last_of_each(maintenance: Iterable[MaintenanceSeen]) -> tuple[MaintenanceSeen, ...]:
    newest: dict[tuple[str, str | None], MaintenanceSeen] = {}
    for operation in sorted(maintenance, key=lambda operation: operation.version):
        newest[operation.operation, operation.result] = operation
    return tuple(sorted(newest.values(), key=lambda operation: -operation.version))
