"""The put of one commit, and what its outcome is if the answer is lost."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from delta_maintenance.errors import (
    CommitUnknownError,
    CorruptTableError,
    StorageError,
    locating,
    table_text,
)
from delta_maintenance.protocol.delta_log.file_names import commit_name
from delta_maintenance.protocol.ndjson.split import parse_other_lines, split
from delta_maintenance.storage.core.base import Put, Store
from delta_maintenance.table.commit.guarded import put_guarded
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry
from delta_maintenance.table.read.segment import LogListing, find_commit, list_log

_logger = logging.getLogger(__name__)
_STALE_MS = 300_000
"""A file of a later version that is older by more than this existed before the commit. Smaller
differences come from clocks, and from writers that rename a temporary file late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPut:
    """Puts the commits of one transaction, each for another version."""

    store: Store
    txn_id: str
    quiet: timedelta | None
    """The quiet window of a guarded commit; None if other writers put conditionally."""

    def put(self, version: int, data: bytes) -> Put:
        """Puts the commit. An uncertain answer is resolved by reading the commit back.

        Raises `CommitUnknownError` if that gives no answer, or if the commit recreated a version
        that was deleted from the log; the errors of `put_guarded` if the commit is guarded.
        """
        with locating(table=self.store.root, file=_commit_path(version)):
            outcome = (
                self._put(version, data)
                if self.quiet is None
                else put_guarded(
                    self.store,
                    version,
                    data,
                    txn_id=self.txn_id,
                    quiet=self.quiet,
                    put=lambda: self._put(version, data),
                )
            )
            if outcome is Put.DONE:
                self._require_current(version)
            return outcome

    def _put(self, version: int, data: bytes) -> Put:
        path = _commit_path(version)
        try:
            return self.store.put_if_absent(path, data)
        except CommitUnknownError:
            try:
                return Put.DONE if self._has_written(path) else Put.EXISTS
            except (FileNotFoundError, StorageError, CorruptTableError):
                # A missing file proves nothing: the put may still be in flight.
                pass
            raise

    def _has_written(self, path: str) -> bool:
        """Whether this transaction wrote the commit. Raises the errors of reading it."""
        text = split(path, self.store.read(path))
        info = parse_other_lines(text, commit_info=True)[0].commit_info
        return info is not None and info.values.get("txnId") == self.txn_id

    def _own_entry(self, listing: LogListing, version: int) -> LogEntry | None:
        """The commit that was just put; None if it is gone, which no listing alone proves."""
        try:
            is_own = version in listing.commits or self._has_written(_commit_path(version))
        except (FileNotFoundError, CorruptTableError):
            return None
        return find_commit(self.store, listing, version) if is_own else None

    def _require_current(self, version: int) -> None:
        """Checks that the commit did not recreate a version that was deleted from the log.

        Since the log was read, the version may have been committed by another writer and deleted by
        a log clean-up. A conditional put cannot detect that.
        """
        try:
            listing = list_log(self.store, first_version=version)
            own_entry = self._own_entry(listing, version)
        except StorageError as error:
            _logger.warning(
                "version %d of %s is committed, but the check whether a log clean-up had deleted "
                "that version before failed: %s",
                version,
                table_text(self.store.root),
                error,
            )
            return
        later = [entry for at, entry in listing.commits.items() if at > version]
        later += [entry for checkpoint in listing.checkpoints for entry in checkpoint.entries]
        limit = None if own_entry is None else own_entry.status.modified_ms - _STALE_MS
        stale = next((e for e in later if limit is None or e.status.modified_ms < limit), None)
        if own_entry is not None and stale is None:
            return
        evidence = f"{stale.path} is older" if stale is not None else "it was deleted"
        raise CommitUnknownError(
            "the commit may have recreated a version that a log clean-up had deleted before: "
            f"{evidence}",
            version=version,
            remedy="check which state readers see before running again",
        )


def _commit_path(version: int) -> str:
    return f"{LOG_DIRECTORY}/{commit_name(version)}"
