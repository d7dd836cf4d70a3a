"""Waits for changes of a table, by polls whose cost does not depend on the length of the log.

A poll makes one listing, which starts where the last listing ended, and at most one read: of the
newest commit if it is new, or of the `_last_checkpoint` hint if checkpoints matter. Older new
commits are read only if the newest one does not match: newest first, each once, two per further
poll, which makes no listing. These reads, and further pages of a listing, are left to polls without
a pause: see `more`. The stores of all tables share their clients. A failed request is not repeated,
because the next poll repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from delta_maintenance.address import Access
from delta_maintenance.catalogs.reference import locate
from delta_maintenance.errors import InvalidRequestError, VersionNotFoundError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.position import Position
from delta_maintenance.protocol.ndjson.raw_lines import CommitDigest
from delta_maintenance.storage import open_store
from delta_maintenance.storage.addresses import SharedClients
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_watch import LogWatch, PollSpentError, Sighting
from delta_maintenance.table.read.managed_log import managed_log

__all__ = ["LogWatch", "Sighting"]

PositionT = TypeVar("PositionT", bound=Position)

_CLIENTS = SharedClients(pauses=())


def open_watched(uri: str, storage_options: Mapping[str, str] | None = None) -> Store:
    """Opens the store of a watched table, which shares its client with others of this process."""
    located = locate(uri, storage_options, access=Access.READ)
    store = open_store(located.address, located.storage_options, clients=_CLIENTS)
    return managed_log(store, located.storage_options, os.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFilter(Record):
    """The commits that count; all conditions must hold."""

    data_changes_only: bool = False
    """Only commits that add or remove rows, by `dataChange` of their files: not OPTIMIZE, VACUUM
    and similar ones, and not changes of properties or of the protocol.
    """
    operations: tuple[str, ...] = ()
    """Only these operations, by the name in `commitInfo`, ignoring case: `MERGE`, `WRITE`. Empty
    for all.
    """
    protocol_changes: bool = False
    """Only commits that change the protocol."""
    properties: tuple[str, ...] = ()
    """Only commits that change one of these table properties."""

    @property
    def takes_all(self) -> bool:
        """Whether all commits match, so that none has to be read."""
        return self == CommitFilter()

    def takes(self, digest: CommitDigest, before: Mapping[str, str | None]) -> bool | None:
        """Returns whether a commit matches; None if its first bytes do not decide that.

        `before` are the properties before the commit; see `CommitFilter.properties`.
        """
        answers: list[bool | None] = []
        if self.data_changes_only:
            answers.append(digest.changes_data)
        if self.operations:
            operations = {name.upper() for name in self.operations}
            is_known = digest.operation is not None or digest.whole
            answers.append((digest.operation or "").upper() in operations if is_known else None)
        if self.protocol_changes:
            answers.append(True if digest.changes_protocol else _no(digest))
        if self.properties:
            after = digest.configuration
            answers.append(
                any(after.get(name) != before.get(name) for name in self.properties)
                if after is not None
                else _no(digest)
            )
        if False in answers:
            return False
        return None if None in answers else True


class CommitCount(Generic[PositionT]):
    """Counts the commits of a watch that a filter accepts, each once.

    `properties` are those of the table at the position, for a filter that needs them.
    """

    def __init__(
        self,
        accepts: CommitFilter,
        position: PositionT,
        *,
        properties: Mapping[str, str | None] | None = None,
    ) -> None:
        self.position = position
        """All commits up to its version are counted, except the unread ones."""
        self.matched: int | None = None
        """The commit that was counted last."""
        self._accepts = accepts
        self._properties = dict(properties or {})

    def count(self, watch: LogWatch, *, newest: int, enough: int = 1) -> bool:
        """Counts the commits up to `newest` until `enough` are found. Returns whether none is left.

        Reads at most as many commits as the poll has requests left; returns False if there are
        more.
        """
        position = self.position = self.position.after_listing(newest)
        if self._accepts.takes_all:
            number = sum(high - low + 1 for low, high in position.unread)
            self.position = replace(position, counted=position.counted + number, unread=())
        while self.position.unread and self.position.counted < enough:
            # The newest commit is most likely cached and most likely to match. For changed
            # properties, commits are compared with earlier ones, so they are read in order.
            version = self.position.next_unread(oldest_first=bool(self._accepts.properties))
            try:
                matches = self._read(watch, version)
            except PollSpentError:
                return False
            self.matched = version if matches else self.matched
            self.position = self.position.after_reading(version, matches=matches)
        self.position = replace(self.position, unread=(), half_read=None)
        return True

    def _read(self, watch: LogWatch, version: int) -> bool:
        """Returns whether a commit matches."""
        digest, answer = None, None
        if self.position.half_read is None:
            digest = watch.digest(version)
            answer = None if digest is None else self._accepts.takes(digest, self._properties)
            if answer is None and digest is not None:
                self.position = replace(self.position, half_read=version)
        if self.position.half_read is not None:
            digest = watch.whole(version)
            answer = None if digest is None else self._accepts.takes(digest, self._properties)
        if digest is not None and digest.configuration is not None:
            after = digest.configuration
            self._properties = {name: after.get(name) for name in self._accepts.properties}
        # A commit that was deleted before it could be read may have been a match.
        return answer is None or answer


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitCondition(Record):
    """The condition to wait for.

    Exactly one of `version`, `after_version` and `min_commits_since_checkpoint` is given.
    `after_version` waits for `min_commits` later commits that `commits` accepts; -1 means a table
    without a commit.
    """

    version: int | None = None
    after_version: int | None = None
    min_commits: int = 1
    commits: CommitFilter = field(default_factory=CommitFilter)
    known_properties: dict[str, str | None] = field(default_factory=dict)
    """The values of the properties that `commits` needs, as of `after_version`."""
    min_commits_since_checkpoint: int | None = None

    def __post_init__(self) -> None:
        ways = (self.version, self.after_version, self.min_commits_since_checkpoint)
        if sum(way is not None for way in ways) != 1:
            raise InvalidRequestError(
                "give exactly one of version, after_version and min_commits_since_checkpoint"
            )
        if self.after_version is None and not self.commits.takes_all:
            raise InvalidRequestError(
                "the filter of commits requires after_version", remedy="give after_version"
            )
        if self.min_commits < 1:
            raise InvalidRequestError(
                f"min_commits must be at least 1, not {self.min_commits}", remedy="give 1 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitProgress:
    """The state of a wait after a poll."""

    table: str
    version: int
    """The newest known version."""
    done: bool
    more: bool
    """Whether the poll has left work, so that the next poll should follow without a pause."""
    values: Mapping[str, int | None]
    """The values of the condition. `commits`: the matching commits after `after_version`, counted
    only up to the required number, or those that readers replay on top of `checkpoint_version`: the
    newest checkpoint that is complete by name and size; None without one.
    """

    def found(self) -> dict[str, Any]:
        """Returns the facts as a flat mapping: `table`, `version`, and the values of the
        condition.
        """
        return {"table": self.table, "version": self.version, **self.values}


class Wait:
    """A condition on one table that is polled repeatedly. Not thread-safe."""

    def __init__(self, store: Store, condition: WaitCondition) -> None:
        self._condition = condition
        after = condition.after_version
        self._watch = LogWatch(
            store,
            version=None if after is None else max(after, 0),
            checkpoints=condition.min_commits_since_checkpoint is not None,
        )
        self._count = CommitCount(
            condition.commits,
            Position(version=-1 if after is None else after),
            properties=condition.known_properties,
        )
        self._behind: Sighting | None = None

    @property
    def store(self) -> Store:
        """The store of the table; may be replaced by one with fresh credentials."""
        return self._watch.store

    @store.setter
    def store(self, store: Store) -> None:
        self._watch.store = store

    def poll(self) -> WaitProgress:
        """Polls once.

        `NotADeltaTableError` if there is no log (any more); `VersionNotFoundError` if another log
        has replaced it; `StorageError` if the store does not answer.
        """
        asked = self._condition
        if self._behind is not None:
            self._watch.poll_again()
        seen = self._behind or self._watch.poll()
        table = self._watch.store.root
        # The requested version belongs to the log that was replaced.
        if seen.replaced and asked.after_version is not None:
            raise VersionNotFoundError(
                f"the log ends at version {seen.version}, before the last known version",
                table=table,
                remedy="another table replaced this one: wait for one of its versions",
            )
        values: dict[str, int | None] = {}
        everything = True
        if asked.min_commits_since_checkpoint is not None:
            checkpoint = seen.checkpoint_version
            commits = seen.version - (-1 if checkpoint is None else checkpoint)
            values = {"checkpoint_version": checkpoint, "commits": commits}
            done = commits >= asked.min_commits_since_checkpoint and not seen.more
        elif asked.version is not None:
            done = seen.version >= asked.version
        else:
            assert asked.after_version is not None
            # The requested version may not have been written yet.
            everything = seen.version <= asked.after_version or self._count.count(
                self._watch, newest=seen.version, enough=asked.min_commits
            )
            commits = self._count.position.counted
            values = {"commits": commits}
            done = commits >= asked.min_commits
        self._behind = None if everything else seen
        return WaitProgress(
            table=table,
            version=seen.version,
            done=done,
            more=not done and (seen.more or not everything),
            values=values,
        )


def current_properties(
    uri: str,
    names: tuple[str, ...],
    *,
    version: int,
    storage_options: Mapping[str, str] | None = None,
) -> dict[str, str | None]:
    """Returns the values of table properties at a version: see `WaitCondition.known_properties`.

    Opens the table. Raises `VersionNotFoundError` for a version that is not retained.
    """
    # Loads pyarrow, which a plain watcher does not need.
    from delta_maintenance.table.read.table import open_table

    if version < 0:
        return dict.fromkeys(names)
    table = open_table(uri, storage_options, access=Access.READ)
    configuration = table.snapshot(version).metadata.configuration
    return {name: configuration.get(name) for name in names}


def _no(digest: CommitDigest) -> bool | None:
    """Returns False if the whole commit has been read, otherwise None."""
    return False if digest.whole else None
