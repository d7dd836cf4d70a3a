"""The commits that a log retains, and which of them was current when.

Implements the reader's side of "In-Commit Timestamps". A commit's version is the number in its
file's name, never what is written inside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from delta_maintenance.errors import NotADeltaTableError, VersionNotFoundError
from delta_maintenance.protocol.actions import Json
from delta_maintenance.protocol.commit_text import parse_other_lines
from delta_maintenance.storage.base import Store
from delta_maintenance.table.log_reader import LogTail
from delta_maintenance.table.log_segment import LogEntry, LogListing, list_log


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEntry:
    """One commit of the history."""

    version: int
    timestamp_ms: int
    """Milliseconds since 1970-01-01 UTC: the in-commit timestamp, else the file's time, moved
    forward where files are not in the order of their versions."""
    operation: str | None
    commit_info: Json = field(default_factory=dict)
    """The commit's own `commitInfo`, empty where the writer left none."""

    @property
    def timestamp(self) -> datetime:
        """`timestamp_ms` as a datetime in UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self.timestamp_ms)

    def to_json(self) -> dict[str, Any]:
        """The entry as the command line prints it."""
        return {
            "version": self.version,
            "timestamp_ms": self.timestamp_ms,
            "operation": self.operation,
            "commitInfo": dict(self.commit_info),
        }


def commit_history(store: Store, *, limit: int | None = None) -> list[CommitEntry]:
    """The retained commits, newest first, at most `limit` of them."""
    listing = list_log(store)
    if not listing.commits:
        raise NotADeltaTableError(
            "the log holds no commit", remedy="check the address of the table"
        )
    times = adjusted_times(listing)
    entries = [listing.commits[version] for version in sorted(listing.commits)]
    return list(islice(_read_entries(store, entries, times), limit))


def adjusted_times(listing: LogListing) -> dict[int, int]:
    """The time of each commit's file, in milliseconds, increasing with the version.

    A file no newer than the one before it counts as one millisecond newer, as Delta Spark has it.
    """
    times: dict[int, int] = {}
    previous: int | None = None
    for version in sorted(listing.commits):
        modified = listing.commits[version].status.modified_ms
        previous = modified if previous is None else max(modified, previous + 1)
        times[version] = previous
    return times


def version_at(store: Store, instant_ms: int) -> int:
    """The newest version committed at or before an instant, in milliseconds since 1970 UTC.

    `VersionNotFoundError` for an instant before the first or after the last retained commit.
    """
    history = commit_history(store)
    newest, oldest = history[0], history[-1]
    if instant_ms > newest.timestamp_ms:
        raise VersionNotFoundError(
            "the timestamp is after the newest commit",
            remedy=f"ask for one up to {newest.timestamp.isoformat()} (version {newest.version})",
        )
    for entry in history:
        if entry.timestamp_ms <= instant_ms:
            return entry.version
    raise VersionNotFoundError(
        "the timestamp is before the oldest retained commit",
        remedy=f"ask for one from {oldest.timestamp.isoformat()} (version {oldest.version}) on",
    )


def _read_entries(
    store: Store, entries: list[LogEntry], times: dict[int, int]
) -> Iterator[CommitEntry]:
    for entry, text in LogTail(store, entries).texts():
        version = entry.file.version
        assert version is not None
        info = parse_other_lines(text, commit_info=True)[0].commit_info
        in_commit = info.in_commit_timestamp if info is not None else None
        yield CommitEntry(
            version=version,
            timestamp_ms=in_commit if in_commit is not None else times[version],
            operation=info.operation if info is not None else None,
            commit_info=info.values if info is not None else {},
        )
