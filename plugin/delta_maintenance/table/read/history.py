"""The retained commits of a log, the version that was current at a time, and the ages of commits.

Implements the reader's side of "In-Commit Timestamps". The version of a commit is the number in the
name of its file; numbers inside the file are ignored.

For decisions about deletion, clocks of writers and stores may be fast, slow or set back. Therefore
the latest known time of a commit counts: that of its file, its in-commit timestamp, or its
`commitInfo.timestamp`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from delta_maintenance import clock
from delta_maintenance.errors import (
    CorruptTableError,
    InvalidRequestError,
    NotADeltaTableError,
    OversizedFileError,
    VersionNotFoundError,
)
from delta_maintenance.protocol.actions.model import CommitInfo, Json
from delta_maintenance.protocol.delta_log.retention import (
    commit_times,
    increasing_times,
    newest_not_after,
)
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.ndjson.split import parse_other_lines
from delta_maintenance.quantities import parse_instant
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LogEntry, read_ahead
from delta_maintenance.table.read.log_reader import LogTail, read_without_files
from delta_maintenance.table.read.segment import (
    LogListing,
    latest_version,
    list_log,
    no_log,
    openable_versions,
)
from delta_maintenance.table.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEntry:
    """One commit of the history."""

    version: int
    timestamp_ms: int
    """Milliseconds since 1970-01-01 UTC: the in-commit timestamp, or else the time of the file,
    moved forward if the files are not in the order of their versions."""
    operation: str | None
    commit_info: Json = field(default_factory=dict)
    """The `commitInfo` of the commit; empty if the writer left none."""
    is_readable: bool = True
    """Whether the log has the commits, or the checkpoint, that open this version."""

    @property
    def timestamp(self) -> datetime:
        """`timestamp_ms` as a datetime in UTC."""
        return clock.instant(self.timestamp_ms)

    def to_json(self) -> dict[str, Any]:
        """The entry as the command line prints it."""
        return {
            "version": self.version,
            "timestamp_ms": self.timestamp_ms,
            "operation": self.operation,
            "commitInfo": dict(self.commit_info),
            "readable": self.is_readable,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class InCommitTimes:
    """The version from which commits contain their own timestamps."""

    first_version: int
    """0 if all commits do."""
    first_ms: int | None
    """The timestamp of that version, if the table properties state it."""


Enablement = Callable[[], InCommitTimes | None]
"""Returns the version from which commits have in-commit timestamps; None if the newest has none."""


def commit_history(
    store: Store, enablement: Enablement, *, limit: int | None = None
) -> list[CommitEntry]:
    """The retained commits, newest first, at most `limit` of them."""
    listing = _listing(store)
    since = _since(store, listing, enablement)
    times = adjusted_times(listing)
    entries = [listing.commits[version] for version in sorted(listing.commits)]
    if limit is not None:
        entries = entries[max(0, len(entries) - limit) :]
    openable = openable_versions(listing)
    return [
        replace(entry, is_readable=entry.version in openable)
        for entry in _read_entries(store, entries, times, since)
    ]


def adjusted_times(listing: LogListing) -> dict[int, int]:
    """Returns the time of each commit's file, in milliseconds, increasing with the version.

    As in Delta Spark, a file that is not newer than the previous one counts as one millisecond
    newer.
    """
    return increasing_times(
        {version: entry.status.modified_ms for version, entry in listing.commits.items()}
    )


def version_at(store: Store, instant_ms: int, enablement: Enablement) -> int:
    """Returns the newest version committed at or before an instant, in milliseconds since 1970 UTC.

    Reads the newest commit and, if it has an in-commit timestamp, a logarithmic number of others.
    Raises `VersionNotFoundError` for an instant before the first or after the last retained commit.
    """
    listing = _listing(store)
    since = _since(store, listing, enablement)
    file_times = adjusted_times(listing)

    def time_of(version: int) -> int:
        if since is None or version < since.first_version:
            return file_times[version]
        entry = listing.commits[version]
        return in_commit_time(store, entry, remedy="request a version instead of a timestamp")

    versions = sorted(listing.commits)
    if instant_ms > time_of(versions[-1]):
        raise VersionNotFoundError(
            "the timestamp is after the newest commit",
            remedy=f"request one up to {_text(time_of(versions[-1]))} (version {versions[-1]})",
        )
    if since is not None:
        # File times and in-commit timestamps may disagree, so only one side can match.
        versions = _side_of(versions, instant_ms, since, time_of)
    position = bisect_right(versions, instant_ms, key=time_of)
    if position == 0:
        raise VersionNotFoundError(
            "the timestamp is before the oldest retained commit",
            remedy=f"request one from {_text(time_of(versions[0]))} (version {versions[0]}) on",
        )
    return versions[position - 1]


def read_commit_info(store: Store, entry: LogEntry) -> CommitInfo | None:
    """The `commitInfo` of one commit."""
    try:
        text = read_without_files(store, entry)
        return parse_other_lines(text, commit_info=True)[0].commit_info
    except CorruptTableError as error:
        raise error.locate(version=entry.file.version) from None


def in_commit_time(store: Store, entry: LogEntry, *, remedy: str) -> int:
    """The in-commit timestamp of a commit, in milliseconds since 1970-01-01 UTC.

    Raises `CorruptTableError` with `remedy` if the commit has none.
    """
    info = read_commit_info(store, entry)
    if info is None or info.in_commit_timestamp is None:
        raise CorruptTableError(
            "the commit has no inCommitTimestamp, although the table has them enabled",
            version=entry.file.version,
            file=entry.path,
            remedy=remedy,
        )
    return info.in_commit_timestamp


def file_times(listing: LogListing, *, now_ms: int) -> dict[int, int]:
    """Returns the time of each commit's file, increasing with the version (`adjusted_times`)."""
    modified = {version: entry.status.modified_ms for version, entry in listing.commits.items()}
    return commit_times(modified, now_ms=now_ms)


def told_time(info: CommitInfo | None) -> int | None:
    """Returns the latest time in a commit itself, in milliseconds since 1970-01-01 UTC."""
    if info is None:
        return None
    return max(
        (time for time in (info.in_commit_timestamp, info.timestamp) if time is not None),
        default=None,
    )


def newest_commit_not_after(
    latest: Snapshot, listing: LogListing, times: Mapping[int, int], *, instant_ms: int
) -> int | None:
    """Returns the newest version such that its commit and all older ones are not newer than an
    instant.

    The instant is in milliseconds since 1970 UTC; `times` are those of the files. Reads every
    commit whose file is not newer than the instant. If commits have in-commit timestamps, which
    increase with the version, it reads a logarithmic number of them.
    """
    newest = newest_not_after(times, instant_ms)
    if newest is None:
        return None
    versions = [version for version in sorted(listing.commits) if version <= newest]
    first_timed = len(versions)
    if in_commit_timestamps.is_active(latest.protocol, latest.metadata.configuration):
        first_version = latest.properties.in_commit_timestamp_enablement_version or 0
        first_timed = bisect_left(versions, first_version)
    entries = [listing.commits[version] for version in versions]
    end = _first_after(latest.log.store, entries[:first_timed], instant_ms)
    if end == first_timed:
        end = bisect_right(
            entries, instant_ms, lo=end, key=lambda entry: _in_commit_time(latest.log.store, entry)
        )
    return versions[end - 1] if end else None


def _listing(store: Store) -> LogListing:
    listing = list_log(store)
    if latest_version(listing) is None and not listing.incomplete:
        raise no_log()
    if not listing.commits:
        raise NotADeltaTableError(
            "the log contains no commit", remedy="check the address of the table"
        )
    return listing


def _since(store: Store, listing: LogListing, enablement: Enablement) -> InCommitTimes | None:
    # With in-commit timestamps enabled, every commit must have one.
    newest = read_commit_info(store, listing.commits[max(listing.commits)])
    if newest is None or newest.in_commit_timestamp is None:
        return None
    return enablement()


def _side_of(
    versions: list[int], instant_ms: int, since: InCommitTimes, time_of: Callable[[int], int]
) -> list[int]:
    before = bisect_left(versions, since.first_version)
    if before in (0, len(versions)):
        return versions
    first_ms = since.first_ms if since.first_ms is not None else time_of(versions[before])
    return versions[before:] if instant_ms >= first_ms else versions[:before]


def _text(epoch_ms: int) -> str:
    return clock.instant(epoch_ms).isoformat(timespec="milliseconds")


def _read_entries(
    store: Store, entries: list[LogEntry], times: dict[int, int], since: InCommitTimes | None
) -> Iterator[CommitEntry]:
    for entry, text in LogTail(store, entries).without_files():
        version = entry.file.version
        assert version is not None
        try:
            info = parse_other_lines(text, commit_info=True)[0].commit_info
        except CorruptTableError as error:
            raise error.locate(version=version) from None
        in_commit = info.in_commit_timestamp if info is not None else None
        has_own_time = since is not None and version >= since.first_version
        yield CommitEntry(
            version=version,
            timestamp_ms=in_commit if has_own_time and in_commit is not None else times[version],
            operation=info.operation if info is not None else None,
            commit_info=info.values if info is not None else {},
        )


def _first_after(store: Store, entries: Sequence[LogEntry], instant_ms: int) -> int:
    """Returns the position of the first commit that contains a time after the instant."""
    young = len(entries)
    # Read from the last to the first.
    position = len(entries)
    for _, time in read_ahead(store, entries, lambda entry: recorded_time(store, entry)):
        position -= 1
        if time is not None and time > instant_ms:
            young = position
    return young


def recorded_time(store: Store, entry: LogEntry) -> int | None:
    """Returns the latest time in a commit itself, in milliseconds since 1970-01-01 UTC; None if it
    states none, cannot be read, or was deleted.
    """
    try:
        text = read_without_files(store, entry)
        return told_time(parse_other_lines(text, commit_info=True)[0].commit_info)
    except FileNotFoundError:
        # Another clean-up deleted the commit: its age no longer matters.
        return None
    except OversizedFileError:
        raise
    except CorruptTableError:
        # The commit is unreadable: only its file has a time.
        return None


def _in_commit_time(store: Store, entry: LogEntry) -> int:
    return in_commit_time(store, entry, remedy="find the cause before you delete log files")


def millis_of(timestamp: datetime | str | int) -> int:
    """Returns an instant in milliseconds since 1970-01-01 UTC.

    `InvalidRequestError` for a text that is not ISO 8601, and for a time without a zone.
    """
    if isinstance(timestamp, int):
        return timestamp
    if isinstance(timestamp, str):
        timestamp = parse_instant(timestamp)
    if timestamp.tzinfo is None:
        raise InvalidRequestError(
            f"{timestamp.isoformat()} has no time zone", remedy="add one, such as Z for UTC"
        )
    return clock.epoch_millis(timestamp)
