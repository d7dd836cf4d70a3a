"""The ages of commits, for decisions about their deletion.

Unlike the time that history shows, this one errs on the side of youth: the time of a commit's file
protects it, and so does the time that the commit carries itself, whichever is later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.delta_log.retention import commit_times, newest_not_after
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.history import read_commit_info
from delta_maintenance.table.read.segment import LogEntry, LogListing
from delta_maintenance.table.read.snapshot import Snapshot


def file_times(listing: LogListing, *, now_ms: int) -> dict[int, int]:
    """The time of each commit's file, increasing with the version (`commit_times`)."""
    modified = {version: entry.status.modified_ms for version, entry in listing.commits.items()}
    return commit_times(modified, now_ms=now_ms)


def newest_commit_not_after(
    latest: Snapshot, listing: LogListing, times: Mapping[int, int], *, instant_ms: int
) -> int | None:
    """The newest version of which no time is after an instant, in milliseconds since 1970 UTC.

    Reads a logarithmic number of commits where they carry their times ("In-Commit Timestamps").
    """
    newest = newest_not_after(times, instant_ms)
    if newest is None or not in_commit_timestamps.is_active(
        latest.protocol, latest.metadata.configuration
    ):
        return newest
    first = latest.properties.in_commit_timestamp_enablement_version or 0
    versions = [version for version in sorted(listing.commits) if version <= newest]
    carrying = [version for version in versions if version >= first]
    old = bisect_right(
        carrying, instant_ms, key=lambda v: _own_time(latest.store, listing.commits[v])
    )
    position = len(versions) - len(carrying) + old
    return versions[position - 1] if position else None


def _own_time(store: Store, entry: LogEntry) -> int:
    info = read_commit_info(store, entry)
    if info is None or info.in_commit_timestamp is None:
        raise CorruptTableError(
            "the commit has no inCommitTimestamp, although the table has them enabled",
            version=entry.file.version,
            file=entry.path,
            remedy="leave the log as it is until that is understood",
        )
    return info.in_commit_timestamp
