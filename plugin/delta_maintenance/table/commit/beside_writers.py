"""Commits of operations, made beside those of other writers.

An operation derives its actions from the newest version, and again from a newer one after each
conflict (`commit_beside_writers`). Many commits can be based on the files of one snapshot
(`BesideWriters`): the changes that other writers have made to a file since take precedence, and it
is left out, as a matter for the next pass or the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import DeltaMaintenanceError, table_text
from delta_maintenance.protocol.commit.conflicts import ConcurrentCommit, Rule
from delta_maintenance.protocol.commit.staged import locations_of
from delta_maintenance.table.commit.concurrent_commits import Advance, advance
from delta_maintenance.table.commit.outcome import (
    AlreadyDone,
    CommitOutcome,
    Conflicted,
    Landed,
    Superseded,
    lost_races,
)
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.read.actions_file import UnusableCheckpointError
from delta_maintenance.table.read.log_view import VanishedFileError
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_logger = logging.getLogger(__name__)

T = TypeVar("T")
Ending = Landed | AlreadyDone

TRIES = 50
"""How often the actions of a commit are derived while other writers conflict with them."""
PASSES = 5
"""How often an operation looks for files again that other writers added or changed meanwhile."""
_RESTARTS = 5


def commit_beside_writers(
    table: str,
    newest: Callable[[], T],
    stage: Callable[[T], Transaction | Ending | Conflicted | None],
    *,
    only_next: bool = False,
) -> Ending | None:
    """Commits what `stage` derives from the newest version; None if it derives nothing.

    Both are called again after a conflict, or if other writers have made all actions unnecessary;
    with `only_next`, after any commit of another writer. `stage` can return an outcome instead of a
    transaction. Raises `CommitConflictError` after `TRIES` conflicts, and the errors of a
    transaction.
    """
    lost: Conflicted | Superseded | None = None
    for _ in range(TRIES):
        staged = stage(newest())
        if not isinstance(staged, Transaction):
            outcome: CommitOutcome | None = staged
        else:
            outcome = staged.commit(max_attempts=1) if only_next else staged.commit()
        if not isinstance(outcome, Conflicted | Superseded):
            return outcome
        lost = outcome
    assert lost is not None
    if isinstance(lost, Superseded) or lost.conflict.rule is Rule.RETRIES:
        lost = lost_races(lost.version, attempts=TRIES)
    raise lost.as_error(table)


def restart_reading(table: Table, snapshot: Snapshot, work: Callable[[Snapshot], T]) -> T:
    """Runs work that streams the files of a snapshot.

    It is restarted without a checkpoint that turns out to be damaged, and with the latest version
    after files of the log were deleted.
    """
    for _ in range(_RESTARTS):
        try:
            return work(snapshot)
        except VanishedFileError:
            snapshot = table.snapshot()
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)
    return work(snapshot)


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


class BesideWriters:
    """Commits changes of files of one snapshot, one after another."""

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
        stage: Callable[[Snapshot, TouchedFiles], Transaction | Ending | None],
        *,
        only_next: bool = False,
    ) -> Ending | None:
        """Commits what `stage` derives from the newest version, without the touched files.

        As `commit_beside_writers`. Raises `VanishedFileError` if the commits of other writers were
        deleted.
        """
        outcome = commit_beside_writers(
            self._base.table,
            self._move_on,
            lambda base: stage(base, self._touched),
            only_next=only_next,
        )
        self._own = outcome if isinstance(outcome, Landed) else self._own
        return outcome

    def commit_files(
        self,
        files: pa.Table,
        stage: Callable[[Snapshot, pa.Table], Transaction],
        *,
        only_next: bool = False,
    ) -> Landed | None:
        """Commits a change of the files that no other writer changed, if there are any."""

        def stage_untouched(base: Snapshot, touched: TouchedFiles) -> Transaction | None:
            untouched = touched.left_out_of(files)
            return stage(base, untouched) if untouched.num_rows else None

        outcome = self.commit(stage_untouched, only_next=only_next)
        return outcome if isinstance(outcome, Landed) else None

    def _move_on(self) -> Snapshot:
        moved = advance(self._base, landed=self._own)
        self._base = moved.snapshot
        self._touched.offer(moved.commits)
        self._follow(moved)
        return moved.snapshot


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
