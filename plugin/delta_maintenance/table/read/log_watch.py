"""Detects new commits of a log by polls whose cost does not depend on the length of the log.

`commit.follow` advances a snapshot. This module only detects new commits, for processes that watch
hundreds of tables and open none of them. It does not import Arrow, to save memory.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    NotADeltaTableError,
    locating,
)
from delta_maintenance.protocol.delta_log.file_names import (
    LogFileKind,
    commit_name,
    parse_log_file_name,
    version_prefix,
)
from delta_maintenance.protocol.ndjson.raw_lines import PREFIX_BYTES, CommitDigest, digest_commit
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry
from delta_maintenance.table.read.managed_log import ManagedStore
from delta_maintenance.table.read.segment import LogListing, arrange, hinted_version, latest_version

NAMES = 1000
"""The maximum number of names that a poll takes from a listing: one page on S3 and Google Cloud
Storage.
"""
POLL_REQUESTS = 2
"""The maximum number of requests of one poll, listings and reads together."""
_KEPT = 64
"""The number of digests that are kept for other watchers of the same commits."""

_log = logging.getLogger(__name__)


class PollSpentError(Exception):
    """This poll has used up its requests; the commit must wait for the next poll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The result of one poll."""

    since: int
    """The newest version known before; -1 if there was none."""
    version: int
    """The newest known version."""
    checkpoint_version: int | None = None
    """The version of the newest checkpoint seen so far."""
    more: bool = False
    """Whether the listing had more names, so that the next poll need not wait."""
    replaced: bool = False
    """Whether the log ends before the last known version: it is another log, and `since` is -1."""


class LogWatch:
    """Polls one log repeatedly. Not thread-safe.

    The first poll begins at `version`, which the caller knows, or else at the checkpoint that
    `_last_checkpoint` names. With `checkpoints`, every poll reads that hint, to notice checkpoints
    of older versions.
    """

    def __init__(
        self, store: Store, *, version: int | None = None, checkpoints: bool = False
    ) -> None:
        self.store = store
        """May be replaced by another store of the same root with fresh credentials."""
        self._known = version
        self._checkpoints = checkpoints
        self._hint: int | None = None
        self._checkpoint: int | None = None
        self._looked = False
        self._left = POLL_REQUESTS
        self._digests: dict[int, CommitDigest] = {}

    @property
    def version(self) -> int | None:
        """The newest version known; None before the first poll."""
        return self._known

    def poll(self) -> Sighting:
        """Polls the log: at most one read, and one listing of at most `NAMES` names or one version.

        If the log does not continue at the last known version, it is listed once more. The catalog
        of a catalog-managed table is asked instead, by one request, unless checkpoints matter.
        Raises `NotADeltaTableError` if there is no log (any more).
        """
        self.poll_again()
        with locating(table=self.store.root):
            return self._look()

    def poll_again(self) -> None:
        """Starts a poll without a listing, for commits that the last one could not read."""
        self._left = POLL_REQUESTS

    def digest(self, version: int) -> CommitDigest | None:
        """Returns the digest of a commit, which takes one read the first time; None if it was
        deleted.

        Only the beginning is read; see `whole`. An unreadable commit counts as a change of data, so
        that the process that reacts to it reports the error. Raises `PollSpentError` if this poll
        has used up its requests.
        """
        return self._digests.get(version) or self._read(version, PREFIX_BYTES)

    def whole(self, version: int) -> CommitDigest | None:
        """Like `digest`, after reading the whole commit."""
        digest = self._digests.get(version)
        return digest if digest is not None and digest.whole else self._read(version, None)

    def _look(self) -> Sighting:
        if isinstance(self.store, ManagedStore) and not self._checkpoints:
            return self._ask_catalog(self.store)
        hint = None
        if self._known is None or self._checkpoints:
            self._left -= 1
            hint = hinted_version(self.store)
        first_version, since = hint or 0, -1
        if self._known is not None:
            since = self._known
            # Only a listing shows whether the checkpoint that a new hint names exists.
            first_version = min(since, hint) if hint is not None and hint != self._hint else since
        listing, has_more = self._list(first_version)
        newest = latest_version(listing)
        replaced = False
        if newest is None:
            # The newest version is never deleted, so this is another log, or the hint was wrong.
            listing, has_more = self._list(0)
            newest = latest_version(listing)
            if newest is None:
                raise self._no_log()
            replaced, since = self._looked, -1
            self._checkpoint = None
            self._digests.clear()
        elif newest < since:
            # The listing from an older checkpoint was truncated too early.
            newest, has_more = since, False
        self._hint, self._known, self._looked = hint, newest, True
        versions = [self._checkpoint, *(checkpoint.version for checkpoint in listing.checkpoints)]
        self._checkpoint = max(
            (version for version in versions if version is not None), default=None
        )
        return Sighting(
            since=since,
            version=newest,
            checkpoint_version=self._checkpoint,
            more=has_more,
            replaced=replaced,
        )

    def _ask_catalog(self, store: ManagedStore) -> Sighting:
        self._left -= 1
        before, newest, looked = self._known, store.ask().latest_version, self._looked
        self._known, self._looked = newest, True
        if before is not None and before <= newest:
            return Sighting(since=before, version=newest)
        self._digests.clear()
        return Sighting(since=-1, version=newest, replaced=looked)

    def _list(self, first_version: int) -> tuple[LogListing, bool]:
        """Lists the log from a version on. Also returns whether the listing has more names."""
        self._left -= 1
        entries: list[LogEntry] = []
        start, further = version_prefix(first_version), False
        for status in self.store.list_from(LOG_DIRECTORY, start):
            entry = LogEntry(parse_log_file_name(status.path.rpartition("/")[2]), status)
            entries.append(entry)
            # A page that does not get beyond its first version makes no progress.
            further |= (
                entry.file.kind is LogFileKind.COMMIT and (entry.file.version or 0) > first_version
            )
            if len(entries) >= NAMES and further:
                return arrange(entries, first_version=first_version), True
        return arrange(entries, first_version=first_version), False

    def _read(self, version: int, size: int | None) -> CommitDigest | None:
        if self._left <= 0:
            raise PollSpentError
        self._left -= 1
        path = f"{LOG_DIRECTORY}/{commit_name(version)}"
        try:
            # One byte more shows whether the file ends there.
            data = self.store.read(path) if size is None else self.store.read_head(path, size + 1)
            is_whole = size is None or len(data) <= size
            digest = digest_commit(data, version=version, name=path, whole=is_whole)
        except FileNotFoundError:
            return None
        except CorruptTableError as error:
            _log.warning("%s", error.locate(table=self.store.root, version=version))
            digest = CommitDigest(version=version, changes_data=True, whole=True)
        except DeltaMaintenanceError as error:
            raise error.locate(table=self.store.root, version=version) from error.__cause__
        while len(self._digests) >= _KEPT:
            self._digests.pop(next(iter(self._digests)))
        self._digests[version] = digest
        return digest

    def _no_log(self) -> NotADeltaTableError:
        if not self._looked:
            return NotADeltaTableError(
                "the log contains no commit and no complete checkpoint",
                file=LOG_DIRECTORY,
                remedy="check the address of the table",
            )
        return NotADeltaTableError(
            "the log no longer exists",
            version=self._known,
            file=LOG_DIRECTORY,
            remedy="give the new address if the table was moved; stop waiting if it was deleted",
        )
