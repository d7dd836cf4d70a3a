"""Commits new statistics in batches, while other writers commit to the same table.

Live files are added again with all other fields as in the log. A file that another writer has
changed since is left out, because its statistics may have changed too. Every commit leaves a valid
table, and the remaining work follows from the table alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from delta_maintenance.errors import CommitConflictError
from delta_maintenance.operations.backfill_row_ids.batches import in_batches
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.recompute_stats import RecomputeStatsOptions
from delta_maintenance.operations.recompute_stats.defects import affected_files, required_statistics
from delta_maintenance.operations.recompute_stats.reading import StatisticsEngine
from delta_maintenance.operations.recompute_stats.repair import StatisticsRepair
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.table.commit.beside_writers import BesideWriters, restart_reading
from delta_maintenance.table.commit.concurrent_commits import Advance
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

OPERATION = "COMPUTE STATS"
"""As in Delta Spark."""


class StatisticsCommits:
    """One run on one table. Counts its work, whether it succeeds or fails."""

    def __init__(
        self,
        table: Table,
        snapshot: Snapshot,
        options: RecomputeStatsOptions,
        context: RunContext,
        *,
        engine: StatisticsEngine,
        expected: int,
    ) -> None:
        """`expected` is the number of files that the plan found."""
        self._table = table
        self._snapshot = snapshot
        self._options = options
        self._context = context
        self._expected = expected
        self._layout = DataFileLayout.of(snapshot.protocol, snapshot.metadata)
        self._required = required_statistics(snapshot, options)
        every = required_statistics(snapshot, options, every_column=True)
        self.repair = StatisticsRepair(engine, self._layout, self._required, options, every=every)
        self.version = snapshot.version
        self.commits = self.files = self.decoded = self.overtaken = 0

    def run(self) -> None:
        """Recomputes and commits the statistics of every affected file that stays live.

        Raises `CommitConflictError` if the table changed so that the statistics are not valid.
        """
        restart_reading(self._table, self._snapshot, self._pass)

    def _pass(self, snapshot: Snapshot) -> None:
        self.repair.skipped.clear()
        beside = BesideWriters(snapshot, follow=self._take_version)
        for files, decoded in self._repaired(snapshot):
            commit = beside.commit_files(files, self._stage)
            landed = 0
            if commit is not None:
                landed = commit.num_adds
                self.version = commit.version
                self.commits += 1
            self.files += landed
            self.decoded += landed if decoded else 0
            self.overtaken += files.num_rows - landed
            if self._context.progress is not None:
                self._context.progress("files", self.files, max(self._expected, self.files))

    def _take_version(self, moved: Advance) -> None:
        self.version = max(self.version, moved.snapshot.version)
        self._require_same_columns(moved.snapshot)

    def _repaired(self, snapshot: Snapshot) -> Iterator[tuple[pa.Table, bool]]:
        affected = affected_files(
            snapshot, self._required, self._options, now=self._context.started
        )
        for batch in in_batches(affected, self._options.files_per_commit):
            for part in self.repair.repaired(batch):
                yield part.adds, part.decoded

    def _stage(self, base: Snapshot, files: pa.Table) -> Transaction:
        transaction = Transaction(
            base,
            OPERATION,
            parameters={"predicate": []},
            writer=self._context.writer(self._options),
        )
        transaction.stage_info(metrics={"numFiles": files.num_rows})
        transaction.read_files(files)
        transaction.stage_adds(files)
        return transaction

    def _require_same_columns(self, snapshot: Snapshot) -> None:
        layout = DataFileLayout.of(snapshot.protocol, snapshot.metadata)
        if not layout.takes_files_of(self._layout):
            raise CommitConflictError(
                "another writer changed the columns of the table",
                table=snapshot.table,
                version=snapshot.version,
                remedy="run again",
            )
