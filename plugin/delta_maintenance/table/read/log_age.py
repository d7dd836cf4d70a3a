"""The ages of commits, for decisions about their deletion.

Clocks of writers and stores may be fast, slow or set back. Therefore the latest known time of a
commit counts: that of its file, its in-commit timestamp, or its `commitInfo.timestamp`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from delta_maintenance.errors import CorruptTableError, OversizedFileError
from delta_maintenance.protocol.actions.model import CommitInfo
from delta_maintenance.protocol.delta_log.retention import commit_times, newest_not_after
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.ndjson.split import parse_other_lines
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.history import in_commit_time
from delta_maintenance.table.read.log_reader import read_without_files
from delta_maintenance.table.read.read_ahead import read_ahead
from delta_maintenance.table.read.segment import LogEntry, LogListing
from delta_maintenance.table.read.snapshot import Snapshot


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
        first = latest.properties.in_commit_timestamp_enablement_version or 0
        first_timed = bisect_left(versions, first)
    entries = [listing.commits[version] for version in versions]
    old = _first_after(latest.store, entries[:first_timed], instant_ms)
    if old == first_timed:
        old = bisect_right(
            entries, instant_ms, lo=old, key=lambda entry: _in_commit_time(latest.store, entry)
        )
    return versions[old - 1] if old else None


def _first_after(store: Store, entries: Sequence[LogEntry], instant_ms: int) -> int:
    """Returns the position of the first commit that contains a time after the instant."""
    young = len(entries)
    # Read from the last to the first.
    position = len(entries)
    for _, time in read_ahead(store, entries, lambda entry: _recorded_time(store, entry)):
        position -= 1
        if time is not None and time > instant_ms:
            young = position
    return young


def _recorded_time(store: Store, entry: LogEntry) -> int | None:
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
