"""Committing rewritten bins while other writers commit to the same table.

A commit only removes source files and adds the files that replace them. Each attempt starts from
the latest version of the table. Deletions of other writers in a source file are carried over to the
new files; if that is impossible, only the bin of this file is given up. The conditions for the new
files are validated again. Implements the writers' side of "Add File and Remove File" for data
that only moves, and of "Row Tracking".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from delta_maintenance.errors import (
    CommitConflictError,
    DeltaMaintenanceError,
    StorageError,
    VerificationError,
)
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.operations.rewriting.pending import (
    Pending,
    bin_adds,
    file_metrics,
    removes_of_bins,
)
from delta_maintenance.operations.rewriting.sources import Followed, FollowedSources
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.commit.staged import staged_adds
from delta_maintenance.table.commit.beside_writers import commit_beside_writers
from delta_maintenance.table.commit.concurrent_commits import advance
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.commit.transaction import RowIds, Transaction, Writer
from delta_maintenance.table.data.bins import render_digests
from delta_maintenance.table.data.carried_deletions import (
    COMPLETE,
    LateDeletions,
    late_deletions,
    late_deletions_by_value,
    prove_positions,
    without_rows,
    write_vectors,
)
from delta_maintenance.table.read.log_view import VanishedFileError
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

SUMS_TAG = "delta-maintenance.rowSums"
"""The tag of `commitInfo` that holds the digest of all rows that a commit moved."""

_REMAPS = 20
"""How often the deletion vectors of a bin may be written. They cost little compared with the bin,
and in a busy table some rows are deleted between any two attempts.
"""
_WRITTEN_AGAIN = 2
"""How often the new files of a bin are written again before the bin is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """The settings of all commits of a run."""

    operation: Literal["OPTIMIZE", "REORG", "REMOVE COLUMN MAPPING"]
    parameters: Mapping[str, Any]
    """`operationParameters` in `commitInfo`."""
    writer: Writer


class RewriteCommits:
    """All commits of one run. Not thread-safe."""

    def __init__(
        self, table: Table, snapshot: Snapshot, contract: Contract, settings: CommitSettings
    ) -> None:
        self._table = table
        self._base = snapshot
        self._contract = contract
        self._settings = settings
        self._own: Landed | None = None
        self._followed: FollowedSources | None = None
        self.version = snapshot.version
        self.commits = 0
        self.table_changed: str | None = None
        """The reason why this run can commit no more bins."""

    def plan_for(self, adds: pa.Table) -> None:
        """Registers sources of the run, as of the latest version that the run has read.

        Must be called before these sources are committed.
        """
        if self._followed is None:
            self._followed = FollowedSources(self._base, adds)
        else:
            self._followed.follow(adds)

    def commit(self, bins: Sequence[Pending]) -> None:
        """Commits these bins in one commit, and sets the fate of each bin.

        Raises `CommitUnknownError` if the outcome of the commit is unknown, and the error of a
        table that must not be committed to. Bins then have no fate.
        """

        def waiting() -> list[Pending]:
            return [pending for pending in bins if pending.fate is None]

        def stage(_: Snapshot) -> Transaction | None:
            for pending in waiting():
                if self.table_changed is not None:
                    pending.fate, pending.problem = "table-changed", self.table_changed
                else:
                    self._adjust(pending)
            return self._stage(waiting()) if waiting() else None

        # The rules for rebasing a commit do not cover all conditions for the new files.
        try:
            outcome = commit_beside_writers(self._table.uri, self._move_on, stage, only_next=True)
        except CommitConflictError:
            for pending in waiting():
                pending.fate = "contended"
                pending.problem = "other writers committed first in every attempt"
            return
        if not isinstance(outcome, Landed):
            return
        self.commits += 1
        self.version = outcome.version
        self._own = outcome
        for pending in waiting():
            pending.version = outcome.version
            if pending.vectors:
                pending.fate = "remapped"
            else:
                pending.fate = "written-again" if pending.current is not None else "committed"

    def _move_on(self) -> Snapshot:
        """Reads the commits of other writers and validates the conditions for the new files."""
        followed = self._followed
        try:
            moved = advance(self._base, landed=self._own)
            if followed is not None:
                followed.take_in(moved.snapshot, moved.commits)
            self._base = moved.snapshot
        except (VanishedFileError, FileNotFoundError):
            # A clean-up deleted commits, so the state of the sources must be read from a snapshot.
            self._base = self._table.snapshot()
            if followed is not None:
                followed.reopened(self._base)
        self._own = None
        self.version = max(self.version, self._base.version)
        broken = self._contract.broken_by(self._base)
        if broken is not None:
            self.table_changed = broken
        return self._base

    def _adjust(self, pending: Pending) -> None:
        """Adapts a bin to the changes of other writers to its sources."""
        assert self._followed is not None
        touched = self._followed.touched(pending.adds)
        state = tuple(sorted((row, _state(followed)) for row, followed in touched.items()))
        if state == pending.state:
            return
        pending.state = state
        if any(followed.fate == "rewritten" for followed in touched.values()):
            pending.fate = "superseded"
            pending.problem = "another writer rewrote a source file"
            return
        changed: dict[int, DeletionVectorDescriptor | None | str] = {}
        # Based on the adds as read, because other writers may have reverted their changes since
        # the last attempt.
        adds = pending.read
        pending.vectors, pending.current = {}, None
        pending.removed = pending.late = frozenset()
        for row, followed in touched.items():
            now, before = followed.source, pending.done.bin.sources[row]
            if now is None:
                changed[row] = COMPLETE
                continue
            if self._contract.spec.files.layout.tracks_rows and now.row_ids != before.row_ids:
                pending.fate = "superseded"
                pending.problem = "another writer changed the row IDs of a source file"
                return
            adds = _with_row(adds, row, followed)
            if now.key != before.key:
                changed[row] = now.deletion_vector
        pending.adds = adds
        if changed:
            self._carry_over(pending, changed)

    def _carry_over(
        self, pending: Pending, changed: Mapping[int, DeletionVectorDescriptor | None | str]
    ) -> None:
        """Deletes rows from the new files that other writers deleted from the sources."""
        store, new_id = self._table.store, self._settings.writer.new_id
        try:
            if all(changed.get(row) == COMPLETE for row in range(pending.adds.num_rows)):
                pending.fate = "dropped"
                pending.problem = "other writers removed all rows of the source files"
                return
            late = self._late(pending, changed)
            if late is None:
                pending.fate = "dropped"
                pending.problem = "another writer restored deleted rows of a source file"
                return
            pending.removed = frozenset(row for row, state in changed.items() if state == COMPLETE)
            pending.late = frozenset(late.by_source)
            if not late.by_output:
                return
            emptied_outputs = [
                number
                for number, rows in late.by_output.items()
                if len(rows) == pending.done.outputs[number].rows
            ]
            remaps = Contract.writes_vectors(self._base) and not emptied_outputs
            if pending.remaps >= _REMAPS or (
                not remaps and pending.written_again >= _WRITTEN_AGAIN
            ):
                pending.fate = "contended"
                pending.problem = "other writers changed the source files again and again"
                return
            if remaps:
                pending.remaps += 1
                if pending.done.clustered is None:
                    spec = self._contract.spec
                    prove_positions(store, pending.done, late, spec, proved=pending.proved)
                    pending.proved = late
                numbers = sorted(late.by_output)
                written = write_vectors(
                    store, [late.by_output[number] for number in numbers], new_id=new_id
                )
                pending.vectors = dict(zip(numbers, written, strict=True))
            else:
                pending.written_again += 1
                pending.current = without_rows(
                    store, pending.done, late, self._contract.spec, new_id=new_id
                )
        except VerificationError as error:
            pending.fate, pending.problem = "not-proved", str(error)
        except StorageError as error:
            pending.fate, pending.problem = "failed", str(error)
        except DeltaMaintenanceError as error:
            pending.fate, pending.problem = "dropped", str(error)

    def _late(
        self, pending: Pending, changed: Mapping[int, DeletionVectorDescriptor | None | str]
    ) -> LateDeletions | None:
        store, done = self._table.store, pending.done
        if done.clustered is not None:
            return late_deletions_by_value(store, done, changed, self._contract.spec)
        return late_deletions(store, done, changed)

    def _stage_more(self, txn: Transaction) -> None:
        """Stages the actions of a commit besides those of files. There are none by default."""

    def _metrics(
        self, bins: Sequence[Pending], adds: Sequence[Mapping[str, Any]], removes: pa.Table
    ) -> dict[str, str]:
        """Returns the `operationMetrics` of a commit."""
        return file_metrics(adds, removes)

    def _stage(self, bins: Sequence[Pending]) -> Transaction:
        settings, contract = self._settings, self._contract
        removes = removes_of_bins(bins)
        adds = [
            add
            for pending in bins
            for add in bin_adds(
                pending,
                target_bytes=contract.spec.target_bytes,
                iceberg_compat=contract.iceberg_compat,
                clustering=contract.clustering,
            )
        ]
        # The digest of rows that were copied and not decoded is unknown.
        copied = any(bin_.result.copied for bin_ in bins)
        has_sums = bool(bins) and contract.spec.proof == "rows" and not copied
        tags = {SUMS_TAG: render_digests([bin_.result.sums for bin_ in bins])} if has_sums else {}
        txn = Transaction(
            self._base,
            settings.operation,
            parameters=settings.parameters,
            row_ids=RowIds(preserved=contract.spec.files.layout.tracks_rows),
            writer=settings.writer,
        )
        txn.stage_info(metrics=self._metrics(bins, adds, removes), tags=tags)
        if removes.num_rows:
            txn.stage_removes(removes)
            txn.read_files(removes)
        if adds:
            columns = contract.spec.naming.partition_columns
            txn.stage_adds(staged_adds(adds, partition_columns=columns))
        self._stage_more(txn)
        return txn


def _state(followed: Followed) -> str:
    source = followed.source
    return followed.fate if source is None else json.dumps([followed.fate, *source.key])


def _with_row(adds: pa.Table, row: int, followed: Followed) -> pa.Table:
    """Replaces the add of one source by its current add."""
    assert followed.add is not None
    tables = [adds.slice(0, row), followed.add, adds.slice(row + 1)]
    return pa.concat_tables(tables, promote_options="permissive")
