"""Commits to the files of a table, one after another, while other writers commit to it.

All of them are based on the files of one snapshot. The changes that other writers have made to a
file since take precedence: it is left out, as a matter for the next pass or the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.commit.conflicts import ConcurrentCommit
from delta_maintenance.protocol.commit.staged import locations_of
from delta_maintenance.table.commit.concurrent_commits import Advance, advance
from delta_maintenance.table.commit.outcome import CommitOutcome, Conflicted, Landed
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table_names import table_text

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_TRIES = 20
"""Attempts at one commit after conflicts; each attempt tries many versions."""


class TouchedFiles:
    """Files that other writers added or removed since a snapshot was read."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._locations: list[pa.Array] = []

    def offer(self, commits: Iterable[ConcurrentCommit]) -> None:
        """Adds the commits of other writers."""
        for commit in commits:
            for batch in (commit.adds, commit.removes):
                if batch.num_rows:
                    self._locations.append(locations_of(batch, root=self._root))

    def among(self, adds: pa.Table) -> pa.BooleanArray:
        """Returns which of the adds are of files that another writer changed."""
        touched = pa.concat_arrays([pa.array([], pa.binary()), *self._locations])
        return pc.is_in(locations_of(adds, root=self._root), value_set=touched)

    def left_out_of(self, adds: pa.Table) -> pa.Table:
        """Returns the adds of files that no other writer changed."""
        return adds.filter(pc.invert(self.among(adds))) if self._locations else adds


def delete_uncommitted(table: Table, names: Sequence[str], *, version: int) -> None:
    """Deletes the new files of a commit that failed, if nobody committed after `version`.

    A commit after it might be the failed one, so all files stay then. Files that stay are named in
    a warning.
    """
    remaining = names
    try:
        if names and table.latest_version(known=version) == version:
            remaining = [*table.store.delete_many(names)]
    except DeltaMaintenanceError:
        pass  # The store has failed, as the commit did.
    if remaining:
        _logger.warning(
            "%s: the commit failed, and a vacuum will delete its new files: %d, such as %s",
            table_text(table.uri),
            len(remaining),
            remaining[0],
        )


class BesideWriters:
    """Commits changes of files of one snapshot."""

    def __init__(self, snapshot: Snapshot, *, follow: Callable[[Advance], object]) -> None:
        """`follow` is called with each newer version, before a commit on top of it. It raises an
        error if the remaining work makes no sense there.
        """
        self._base = snapshot
        self._follow = follow
        self._touched = TouchedFiles(snapshot.table)
        self._own: Landed | None = None

    def commit(
        self,
        files: T,
        commit: Callable[[Snapshot, T], CommitOutcome | None],
        *,
        untouched: Callable[[TouchedFiles, T], T],
    ) -> tuple[T, Landed | None]:
        """Commits a change, and returns what is left of it, and the commit if there was one.

        `untouched` leaves out the files that other writers changed. `commit` returns None if
        nothing is left. Raises `CommitConflictError` if other writers commit first again and again,
        and `VanishedFileError` if their commits were deleted.
        """
        conflict: Conflicted | None = None
        for _ in range(_TRIES):
            moved = advance(self._base, landed=self._own)
            self._base = moved.snapshot
            self._touched.offer(moved.commits)
            self._follow(moved)
            files = untouched(self._touched, files)
            outcome = commit(self._base, files)
            if isinstance(outcome, Conflicted):
                conflict = outcome
                continue
            self._own = outcome if isinstance(outcome, Landed) else self._own
            return files, outcome if isinstance(outcome, Landed) else None
        assert conflict is not None
        raise conflict.as_error(self._base.table)
