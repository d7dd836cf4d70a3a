"""Shallow clones: tables whose logs refer to data files of another table.

A shallow clone is a copy of a log: its files have absolute paths ("Add File and Remove File"), and
the log of their table knows nothing of it. Each version that can still be opened counts, because a
reader may travel in time on the clone, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    NotADeltaTableError,
    RefusedError,
    VersionNotFoundError,
)
from delta_maintenance.protocol.actions.paths import absolute_paths
from delta_maintenance.protocol.delta_log.checkpoint_rows import deletion_times
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.protocol.vacuum import ProtectedPaths, deletion_vector_paths
from delta_maintenance.storage import FileStatus, Store
from delta_maintenance.table.read.checkpoint_reader import Checkpoint
from delta_maintenance.table.read.log_file import LogEntry, relisting
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.managed_log import ManagedStore
from delta_maintenance.table.read.segment import CheckpointFiles, LogListing, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table, open_table
from delta_maintenance.table.store_clock import passed_time
from delta_maintenance.table.write.sidecar_writer import commit_times

Take = Callable[[pa.StringArray], object]
"""Receives absolute paths, as written in a log."""

_COMMITTED = {"add": ("path", "deletionVector"), "remove": ("path", "deletionVector")}
_STANDING = {**_COMMITTED, "remove": ("path", "deletionVector", "deletionTimestamp")}
_GONE = "it is no longer needed: remove it from the policy or the options"
_UNREAD = (
    "repair it or wait for its store; if it is no longer needed, remove it from the policy or the "
    "options"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """A shallow clone at the version up to which its references are known. Can be pickled."""

    address: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    last_commit: FileStatus | None = None
    """The commit of that version; None if it was deleted."""
    version: int

    @property
    def holder(self) -> str:
        """The name of the holder in plans and messages."""
        return f"clone {self.address}"


def read_clone(
    address: str,
    *,
    roots: tuple[str, ...],
    now: datetime,
    storage_options: Mapping[str, str] | None = None,
) -> tuple[Clone, ProtectedPaths]:
    """Reads which files of a table a clone needs; `roots` are the addresses of the table.

    Takes 8 bytes for each file. Raises `RefusedError`, which names the clone, if that cannot be
    determined: it is gone, damaged or unsupported, or its store does not answer.
    """
    protected = ProtectedPaths(roots)
    try:
        table = open_table(address, storage_options)
        with closing(table.store):
            snapshot = table.snapshot()
            take_foreign_paths(snapshot, now=now, take=_adding_to(protected))
            last_commit = snapshot.log.segment.last_commit
    except DeltaMaintenanceError as error:
        raise unreadable(address, error) from error
    return (
        Clone(
            address=address,
            storage_options=storage_options,
            last_commit=None if last_commit is None else last_commit.status,
            version=snapshot.version,
        ),
        protected,
    )


class CloneWatch:
    """Follows the logs of clones, so that files to which they come to refer are spared."""

    def __init__(self, clones: tuple[Clone, ...]) -> None:
        self._clones = {clone.address: clone for clone in clones}

    def take_new(self, protected: ProtectedPaths) -> None:
        """Adds the files to which commits since the last call refer. One listing per clone.

        Raises `RefusedError` if the log of a clone was replaced or cannot be read.
        """
        for clone in tuple(self._clones.values()):
            try:
                table = open_table(clone.address, clone.storage_options)
                with closing(table.store):
                    self._clones[clone.address] = relisting(
                        partial(_taken, table, clone, protected)
                    )
            except DeltaMaintenanceError as error:
                raise unreadable(clone.address, error) from error


def _taken(table: Table, clone: Clone, protected: ProtectedPaths) -> Clone:
    listing = list_log(table.store, first_version=clone.version)
    commit = listing.commits.get(clone.version)
    if clone.last_commit is not None and (commit is None or commit.status != clone.last_commit):
        raise RefusedError("its log was replaced after the plan was made", remedy="plan again")
    new = [listing.commits[v] for v in sorted(listing.commits) if v > clone.version]
    take_committed(table, new, take=_adding_to(protected))
    if not new:
        return clone
    return replace(clone, last_commit=new[-1].status, version=max(listing.commits))


def _adding_to(protected: ProtectedPaths) -> Take:
    return lambda paths: protected.add(pa.table({"path": paths}))


def take_foreign_paths(snapshot: Snapshot, *, now: datetime, take: Take) -> None:
    """Passes on the absolute paths in a log whose latest version is `snapshot`, as written.

    These are the data files and the deletion vectors of every version that can be opened, and those
    of tombstones of the latest version that are unexpired or of unknown age. A path may come
    several times. Memory is bounded by a batch of actions. Raises the errors of `Table.snapshot`.
    """
    store = snapshot.log.store
    if supports(snapshot.protocol, "catalogManaged") and not isinstance(store, ManagedStore):
        raise RefusedError(
            "only its catalog knows its newest commits",
            remedy="give its name in the catalog instead of its address",
        )
    retention = snapshot.properties.deleted_file_retention
    passed = passed_time(snapshot, now)
    since_ms = epoch_millis(passed) - retention // timedelta(milliseconds=1)
    relisting(lambda: _take_everything(snapshot, since_ms, take))


def take_committed(table: Table, entries: Sequence[LogEntry], *, take: Take) -> None:
    """Passes on the absolute paths in commits, as written.

    `FileNotFoundError` if one of them was deleted after the listing.
    """
    _take_tail(LogTail(table.store, entries), take)


def take_checkpoint(store: Store, files: CheckpointFiles, *, take: Take) -> None:
    """Passes on the absolute paths in a checkpoint, as written, also those of expired tombstones.

    `UnusableCheckpointError` if it is damaged; what is read until then is passed on.
    """
    keys = MapKeys(partition_columns=frozenset())
    for batch in Checkpoint(store, files).file_actions(keys=keys, fields=_COMMITTED):
        _take_absolute(batch.adds, take)
        _take_absolute(batch.removes, take)


def _take_tail(tail: LogTail, take: Take) -> None:
    keys = MapKeys(partition_columns=frozenset())
    for batch in tail.batches(keys=keys, fields=_COMMITTED):
        _take_absolute(batch.adds, take)
        _take_absolute(batch.removes, take)


def _take_everything(latest: Snapshot, since_ms: int, take: Take) -> None:
    table = Table(latest.log.store)
    listing = list_log(table.store)
    for version in _ends(listing, latest.version):
        snapshot = latest
        if version != latest.version:
            try:
                snapshot = table.snapshot(version=version)
            except (CorruptTableError, NotADeltaTableError, VersionNotFoundError):
                # No reader opens it. The files of its commits are passed on nevertheless.
                continue
        snapshot.avoiding_damage(lambda sound: _take_standing(sound, since_ms, take))
    entries = tuple(listing.commits[version] for version in sorted(listing.commits))
    tail = latest.log.tail
    _take_tail(tail if tail.entries == entries else LogTail(table.store, entries), take)


def _ends(listing: LogListing, latest: int) -> list[int]:
    """Returns the versions after which commits are missing, and the latest one.

    A file of any version is live at the next of these, or a commit in between removes it.
    """
    there = {*listing.commits, *(checkpoint.version for checkpoint in listing.checkpoints)}
    return sorted({v for v in there if v + 1 not in listing.commits and v <= latest} | {latest})


def _take_standing(snapshot: Snapshot, since_ms: int, take: Take) -> None:
    if snapshot.log.checkpoint is None:
        # All of its files are those of commits, which are passed on anyway.
        return
    for batch in snapshot.log.scan(fields=_STANDING):
        _take_absolute(batch.adds, take)
        if batch.tombstones.num_rows:
            times = deletion_times(batch.tombstones, commit_times=commit_times(snapshot))
            counts = pc.fill_null(pc.greater_equal(times, since_ms), True)
            _take_absolute(batch.tombstones.filter(counts), take)


def _take_absolute(actions: pa.Table, take: Take) -> None:
    for paths in actions["path"].chunks:
        which = absolute_paths(paths)
        if which is not None:
            take(paths.filter(which))
    if "deletionVector" in actions.column_names:
        for vectors in actions["deletionVector"].chunks:
            _, absolute = deletion_vector_paths(vectors)
            if len(absolute):
                take(absolute)


def unreadable(address: str, error: DeltaMaintenanceError) -> RefusedError:
    """Returns the error for a clone that cannot be read, which names it."""
    gone = isinstance(error, NotADeltaTableError)
    problem = "it is no table any more" if gone else error.problem
    refused = isinstance(error, RefusedError)
    return RefusedError(
        f"the clone {address} cannot be read, and it may need files of this table: {problem}",
        file=error.file,
        remedy=_GONE if gone else error.remedy if refused else _UNREAD,
    )
