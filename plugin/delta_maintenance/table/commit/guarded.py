"""Commits beside Delta Spark on S3, which can overwrite them until it has put its own commit.

Delta Spark checks whether version N exists and puts it later, without a condition. A commit is made
only after a quiet window without commits of other writers, and it is guarded: before the put, its
bytes are put as a copy; once the store has created the commit, an empty mark is put beside the
copy. From then on, a commit of other bytes at this version has overwritten it. Without the mark, it
is uncertain whether the commit ever was in the log, because the process may have ended before the
put, or another writer may have been first.

A guarded commit takes three requests more than another one: the copy, a listing, and the mark. All
ages are differences between times of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from delta_maintenance import clock
from delta_maintenance.errors import (
    CommitUnknownError,
    DeltaMaintenanceError,
    RefusedError,
    StorageError,
    table_text,
)
from delta_maintenance.protocol.delta_log.file_names import LogFileKind, guarded_names
from delta_maintenance.quantities import duration_text
from delta_maintenance.storage.core.base import FileStatus, Put, Store
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry
from delta_maintenance.table.read.segment import list_log

GUARDED_FOR = timedelta(days=1)
"""The age at which a copy is deleted. Delta Spark and S3A try a put again for minutes; this also
covers a driver that was suspended between its check and its put, as the least retention of logs
does."""
_logger = logging.getLogger(__name__)
_HEAD_BYTES = 1 << 16
"""The bytes by which two commits of one size are compared, however large they are."""
_LISTED_VERSIONS = 300
"""The number of versions before a commit that are listed: with their other files, a listing of one
request. If all of them are guarded commits, the first was made after a quiet window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCommit:
    """The copy of a commit of this library, and its mark."""

    version: int
    copy: LogEntry
    mark: LogEntry | None
    """None if it is unknown whether the store created the commit."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in the order in which they must be deleted."""
        return (self.copy.path,) if self.mark is None else (self.mark.path, self.copy.path)

    def is_at(self, commit: FileStatus, store: Store) -> bool:
        """Whether a commit file is the copied commit.

        Takes no request if the store states tags of contents, as S3 does for objects without keys
        of their own. Raises `FileNotFoundError` if one of the files was deleted meanwhile.
        """
        copy = self.copy.status
        if commit.size != copy.size:
            return False
        if copy.tag and commit.tag == copy.tag:
            return True
        # The first line has the `txnId`, in each commit of this library.
        beginnings = (store.read_head(path, _HEAD_BYTES) for path in (commit.path, copy.path))
        return next(beginnings) == next(beginnings)


def guarded_commits(entries: Iterable[LogEntry]) -> list[GuardedCommit]:
    """Returns the guarded commits of a listing of the log, by ascending version."""
    entries = list(entries)
    marks = {
        (entry.file.version, entry.file.uuid): entry
        for entry in entries
        if entry.file.kind is LogFileKind.GUARDED_MARK
    }
    copies = [entry for entry in entries if entry.file.kind is LogFileKind.GUARDED_COPY]
    return [
        GuardedCommit(
            version=entry.file.version or 0,
            copy=entry,
            mark=marks.get((entry.file.version, entry.file.uuid)),
        )
        for entry in copies
    ]


def put_guarded(
    store: Store,
    version: int,
    data: bytes,
    *,
    txn_id: str,
    quiet: timedelta,
    put: Callable[[], Put],
) -> Put:
    """Makes a guarded commit by calling `put`, if no other writer committed in the quiet window.

    Raises `RefusedError` if one did, or if a guarded commit before this one was overwritten: the
    caller may have built this one on top of it. Nothing is committed then.
    """
    copy, mark = (f"{LOG_DIRECTORY}/{name}" for name in guarded_names(version, txn_id))
    with suppress(CommitUnknownError):
        # After a lost answer, the listing shows whether the copy was written.
        store.put_if_absent(copy, data)
    try:
        _require_quiet_at_put(store, version, quiet=quiet, copy=copy)
    except DeltaMaintenanceError:
        # The put was not sent.
        with suppress(StorageError):
            store.delete(copy)
        raise
    # If the put fails or another writer is first, the copy stays: a put whose answer was lost can
    # have created the commit before Delta Spark overwrote it.
    outcome = put()
    if outcome is Put.DONE:
        try:
            store.put_if_absent(mark, b"")
        except (CommitUnknownError, StorageError, RefusedError) as error:
            table = table_text(store.root)
            _logger.warning("version %d of %s may have no mark: %s", version, table, error)
    return outcome


def newest_of_others(
    commits: Mapping[int, LogEntry], guarded: Iterable[LogEntry]
) -> LogEntry | None:
    """Returns the commit that another writer put last, among those that were listed."""
    own = {guard.version for guard in guarded_commits(guarded) if guard.mark is not None}
    others = [entry for version, entry in commits.items() if version not in own]
    return max(others, key=lambda entry: entry.status.modified_ms, default=None)


def require_quiet(store: Store, version: int, *, quiet: timedelta, now_ms: int) -> None:
    """Raises `RefusedError` if another writer has committed in the quiet window before now.

    For the start of a run whose plan is of this version. Takes a listing.
    """
    listing = list_log(store, first_version=max(0, version - _LISTED_VERSIONS))
    newest = newest_of_others(listing.commits, listing.guarded)
    # The clock of this machine may be slow. The next check goes by the clock of the store.
    if newest is not None and newest.status.modified_ms <= now_ms:
        _require_older(newest, quiet, now_ms)


def _require_quiet_at_put(store: Store, version: int, *, quiet: timedelta, copy: str) -> None:
    listing = list_log(store, first_version=max(0, version - _LISTED_VERSIONS))
    now_ms = next((e.status.modified_ms for e in listing.guarded if e.path == copy), None)
    if now_ms is None:
        raise StorageError("a file is not listed immediately after it was written", file=copy)
    for guard in guarded_commits(listing.guarded):
        commit = listing.commits.get(guard.version)
        if guard.mark is None or commit is None:
            continue
        is_newest = guard.version == version - 1
        if not _is_unchanged(guard, guard.mark, commit.status, store, newest=is_newest):
            raise RefusedError(
                "a commit of an earlier operation was overwritten",
                version=guard.version,
                file=commit.path,
                remedy="run fsck, which says by whom and what was lost",
            )
    newest = newest_of_others(listing.commits, listing.guarded)
    if newest is not None:
        _require_older(newest, quiet, now_ms)


def _require_older(commit: LogEntry, quiet: timedelta, now_ms: int) -> None:
    age = timedelta(milliseconds=max(0, now_ms - commit.status.modified_ms))
    if age < quiet:
        ago = duration_text(timedelta(seconds=age // timedelta(seconds=1)))
        again = clock.instant(commit.status.modified_ms) + quiet
        raise RefusedError(
            f"another writer committed version {commit.file.version} {ago} ago, within the quiet "
            f"window of {duration_text(quiet)}",
            version=commit.file.version,
            file=commit.path,
            remedy=f"run again after {clock.text(again)} if nobody commits until then",
        )


def _is_unchanged(
    guard: GuardedCommit, mark: LogEntry, commit: FileStatus, store: Store, *, newest: bool
) -> bool:
    """Whether a commit is the guarded one, as far as a listing shows; the newest is read if the
    listing leaves a doubt.
    """
    copy, is_later = guard.copy.status, commit.modified_ms > mark.status.modified_ms
    if commit.size != copy.size or (is_later and not commit.tag):
        return False
    try:
        return not (newest or is_later) or guard.is_at(commit, store)
    except FileNotFoundError:
        return False
