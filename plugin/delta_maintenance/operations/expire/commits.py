"""Commits the removal of expired rows while other writers commit to the same table.

Each commit is a DELETE that only depends on the files that it changes: a file of another writer
with expired rows is a matter for the next run, and so is a file that another writer changes again
and again. Every commit leaves a valid table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from delta_maintenance.errors import (
    CommitConflictError,
    CommitUnknownError,
    DeltaMaintenanceError,
    RefusedError,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.expire import ExpirePlan, Mixed
from delta_maintenance.operations.expire.changes import (
    Change,
    changes_of,
    has_feed,
    is_too_long_for_spark,
    names_of,
    parts,
    whole_files,
    with_vectors,
)
from delta_maintenance.operations.expire.limit import Limit, limit_of
from delta_maintenance.operations.expire.marking import Marked, marked
from delta_maintenance.operations.expire.survey import chosen
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.operations.rewriting.engine import LocalEngine
from delta_maintenance.operations.rewriting.models import RefusedFile
from delta_maintenance.operations.rewriting.new_files import target_size
from delta_maintenance.operations.rewriting.pending import Pending, bin_adds
from delta_maintenance.operations.rewriting.sources import source_files
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.columns import to_bools
from delta_maintenance.protocol.commit.conflicts import IsolationLevel
from delta_maintenance.protocol.commit.staged import staged_adds
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.protocol.statistics.as_json import num_records
from delta_maintenance.protocol.statistics.audit import (
    ComputedStatistics,
    RequiredStatistics,
    with_live_bounds,
)
from delta_maintenance.table.commit.beside_writers import (
    PASSES,
    BesideWriters,
    TouchedFiles,
    delete_uncommitted,
)
from delta_maintenance.table.commit.concurrent_commits import Advance
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.commit.transaction import RowIds, Transaction
from delta_maintenance.table.data.bins import Bin, RewriteSpec, RewrittenBin
from delta_maintenance.table.data.carried_deletions import write_vectors
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.read.log_view import VanishedFileError
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.writable import require_writable

OPERATION = "DELETE"
"""As in Delta Spark."""

FILES_PER_COMMIT = 50_000
"""The files that one commit removes without reading them."""
FILES_READ_PER_COMMIT = 1_000
_BYTES_READ = 8 << 30
"""About how many bytes of files are read for one commit."""
_REASON = ("expired-rows",)


def require_expirable(snapshot: Snapshot, mixed: Mixed) -> None:
    """Raises if rows of the table must not be deleted, or not in the way that was asked for.

    `RefusedError` names the property of the table; the errors of `require_writable`.
    """
    require_writable(snapshot, Operation.REWRITE_DATA)
    properties = snapshot.properties
    problem = remedy = None
    if properties.append_only:
        problem = "the table is append-only (delta.appendOnly), so no row of it may be deleted"
        remedy = "set delta.appendOnly to false first, if its rows may go"
    elif mixed == "deletion-vectors" and not Contract.writes_vectors(snapshot):
        problem = "the table does not allow new deletion vectors (delta.enableDeletionVectors)"
        remedy = "enable them, rewrite mixed files instead, or leave them"
    if problem is not None:
        raise RefusedError(problem, remedy=remedy)


class ExpireRun:
    """One run on one table. Counts its work, whether it succeeds or fails."""

    def __init__(
        self, table: Table, snapshot: Snapshot, plan: ExpirePlan, context: RunContext
    ) -> None:
        self._table = table
        self._snapshot = snapshot
        self._plan = plan
        self._context = context
        self._limit = self._limit_at(snapshot)
        self.version = snapshot.version
        self.commits = self.files = self.bytes = self.marked = self.rewritten = 0
        self.overtaken = 0
        self.rows: int | None = 0
        self.skipped: dict[str, RefusedFile] = {}
        """Files that cannot be read or rewritten, by path."""

    def run(self) -> None:
        """Removes the expired rows of all files that the first examination finds.

        Raises `CommitConflictError` if the table changed so that the limit has another meaning.
        """
        snapshot, planned = self._snapshot, None
        for passes_left in reversed(range(PASSES)):
            choice = chosen(snapshot, self._limit, reads_mixed=self._plan.options.mixed != "leave")
            tables = [choice.whole, choice.mixed]
            if planned is None:
                planned = pa.chunked_array(
                    [chunk for batch in tables for chunk in batch["path"].chunks], pa.string()
                )
            else:
                tables = [batch.filter(pc.is_in(batch["path"], planned)) for batch in tables]
            done = self._done
            try:
                changed: int | None = self._pass(snapshot, tables[0], tables[1])
            except VanishedFileError:
                if not passes_left:
                    raise
                changed = None
            if passes_left == PASSES - 1:
                self.overtaken = changed or 0
            else:
                self.overtaken = max(0, self.overtaken - (self._done - done))
            if changed == 0:
                return
            snapshot = self._table.snapshot()
            self._require_same(snapshot)

    @property
    def _done(self) -> int:
        return self.files + self.marked + self.rewritten

    def _pass(self, snapshot: Snapshot, whole_adds: pa.Table, mixed: pa.Table) -> int:
        """Returns the number of files that are left because other writers changed them."""
        overtaken = 0
        beside = BesideWriters(snapshot, follow=self._follow)
        for planned in self._changes(snapshot, whole_adds, mixed):
            overtaken += planned.files - self._commit(beside, planned).files
            if self._context.progress is not None:
                most = max(self._done, whole_adds.num_rows + mixed.num_rows)
                self._context.progress("files", self._done, most)
        return overtaken

    def _commit(self, beside: BesideWriters, planned: Change) -> Change:
        """Returns the change without the files that other writers changed."""
        change = planned

        def stage(base: Snapshot, touched: TouchedFiles) -> Transaction | None:
            nonlocal change
            change = planned.without(to_bools(touched.among(planned.before)))
            return self._stage(base, change) if change.files else None

        try:
            landed = beside.commit(stage)
        except CommitUnknownError:
            raise
        except DeltaMaintenanceError:
            delete_uncommitted(self._table, planned.new_files, version=self.version)
            raise
        if isinstance(landed, Landed):
            self._count(change, landed)
        return change

    def _follow(self, moved: Advance) -> None:
        self.version = max(self.version, moved.snapshot.version)
        self._require_same(moved.snapshot)

    def _changes(
        self, snapshot: Snapshot, whole_adds: pa.Table, mixed: pa.Table
    ) -> Iterator[Change]:
        for adds in parts(whole_adds, most_files=FILES_PER_COMMIT, most_bytes=1 << 62):
            yield whole_files(adds)
        for adds in parts(mixed, most_files=FILES_READ_PER_COMMIT, most_bytes=_BYTES_READ):
            yield from self._of_mixed(snapshot, adds)

    def _of_mixed(self, snapshot: Snapshot, adds: pa.Table) -> Iterator[Change]:
        layout = DataFileLayout.of(snapshot.protocol, snapshot.metadata)
        sources = source_files(adds, num_records(adds["stats"]))
        options = self._plan.options
        required = RequiredStatistics.of(
            snapshot.protocol, snapshot.metadata, snapshot.domain_metadata
        )
        path = self._limit.column.physical
        marked_files = list(
            marked(
                self._table.store,
                layout,
                self._limit,
                sources,
                leaf=next((leaf for leaf in required.leaves if leaf.path == path), None),
                workers=options.workers,
            )
        )
        for source, each in zip(sources, marked_files, strict=True):
            if each.problem is not None:
                self._skip(source, str(each.problem), damaged=each.is_damaged)
        numbers = [number for number, each in enumerate(marked_files) if each.expired]
        if not numbers:
            return
        adds = adds.take(pa.array(numbers, pa.int64()))
        marked_files = [marked_files[number] for number in numbers]
        sources = tuple(sources[number] for number in numbers)
        if options.mixed == "deletion-vectors":
            yield from self._marked(snapshot, adds, sources, marked_files, required)
            return
        yield from self._rewritten(snapshot, adds, sources, marked_files)

    def _marked(
        self,
        snapshot: Snapshot,
        adds: pa.Table,
        sources: tuple[SourceFile, ...],
        marked_files: list[Marked],
        required: RequiredStatistics,
    ) -> Iterator[Change]:
        """Yields the changes that mark the expired rows of files by deletion vectors.

        Files of which Delta Spark could not read the change get change data files, in a change of
        their own: of a commit with such files, readers of changes read nothing else.
        """
        long = [
            number
            for number, (source, marked) in enumerate(zip(sources, marked_files, strict=True))
            if has_feed(snapshot)
            and source.deletion_vector is not None
            and not marked.is_whole
            and is_too_long_for_spark(marked.now)
        ]
        feed: dict[int, RewrittenBin] = {}
        if long:
            self._contract = self._contract_of(snapshot)
            feed = self._feed(self._contract, sources, marked_files, long)
        others = [number for number in range(len(marked_files)) if number not in long]
        for numbers in filter(None, (others, list(feed))):
            some_adds = adds.take(pa.array(numbers, pa.int64()))
            change = self._with_vectors(
                some_adds, [marked_files[number] for number in numbers], required
            )
            if numbers is others:
                yield replace(change, new_files=(*change.new_files, *names_of(feed.values())))
            else:
                yield change.with_feed(list(feed.values()))

    def _with_vectors(
        self, adds: pa.Table, marked_files: list[Marked], required: RequiredStatistics
    ) -> Change:
        remain = [number for number, marked in enumerate(marked_files) if not marked.is_whole]
        written: tuple[DeletionVectorDescriptor, ...] = ()
        if remain:
            positions = [marked_files[number].gone for number in remain]
            written = write_vectors(self._table.store, positions, new_id=self._context.new_id)
        # Without new bounds, the next run would read these files again.
        path = self._limit.column.physical
        computed = [
            ComputedStatistics(rows=marked.rows, bounds={path: marked.remaining}, tight=False)
            if marked.remaining is not None
            else ComputedStatistics(rows=marked.rows, bounds={}, tight=False)
            for marked in (marked_files[number] for number in remain)
        ]
        after = with_live_bounds(adds.take(pa.array(remain, pa.int64())), required, computed)
        return with_vectors(
            adds, _expired(marked_files), after, dict(zip(remain, written, strict=True))
        )

    def _rewritten(
        self,
        snapshot: Snapshot,
        adds: pa.Table,
        sources: tuple[SourceFile, ...],
        marked_files: list[Marked],
    ) -> Iterator[Change]:
        """Yields the change that writes the files again without their expired rows.

        With a change data feed, files without other rows are removed in a change of their own:
        readers of changes need no change data files for it.
        """
        contract = self._contract_of(snapshot)
        done, feed = self._written(snapshot, contract, sources, marked_files)
        new_files = names_of([*done.values(), *feed.values()])
        whole_files = [number for number, marked in enumerate(marked_files) if marked.is_whole]
        if has_feed(snapshot):
            if whole_files:
                yield replace(_whole(adds, marked_files, whole_files), new_files=new_files)
            whole_files = []
        kept = sorted((*whole_files, *done))
        if not kept:
            return
        after, of = [], []
        for at, number in enumerate(kept):
            if number not in done:
                continue
            pending = Pending(done=done[number], adds=adds.slice(number, 1))
            new = bin_adds(
                pending,
                target_bytes=contract.spec.target_bytes,
                iceberg_compat=contract.iceberg_compat,
            )
            after += [add | {"dataChange": True} for add in new]
            of += [at] * len(new)
        columns = contract.spec.naming.partition_columns
        change = replace(_whole(adds, marked_files, kept), rewrites=True, new_files=new_files)
        if after:
            added = staged_adds(after, partition_columns=columns)
            change = replace(change, after=added, of=np.array(of, np.int64))
        if feed:
            change = change.with_feed([feed[number] for number in kept])
        self._contract = contract
        yield change

    def _written(
        self,
        snapshot: Snapshot,
        contract: Contract,
        sources: tuple[SourceFile, ...],
        marked_files: list[Marked],
    ) -> tuple[dict[int, RewrittenBin], dict[int, RewrittenBin]]:
        """Returns the new files of the files with other rows, by number, and, with a change data
        feed, the change data files of the same files.
        """
        mixed = [number for number, marked in enumerate(marked_files) if not marked.is_whole]
        done = self._bins(
            contract.spec, sources, {number: marked_files[number].gone for number in mixed}
        )
        if not has_feed(snapshot):
            return done, {}
        feed = self._feed(contract, sources, marked_files, done)
        return {number: marked for number, marked in done.items() if number in feed}, feed

    def _feed(
        self,
        contract: Contract,
        sources: tuple[SourceFile, ...],
        marked_files: list[Marked],
        numbers: Iterable[int],
    ) -> dict[int, RewrittenBin]:
        """Writes the expired rows of some files to change data files."""
        left_out = {number: marked_files[number].not_expired for number in numbers}
        return self._bins(changes_of(contract.spec), sources, left_out)

    @staticmethod
    def _contract_of(snapshot: Snapshot) -> Contract:
        return Contract.of(snapshot, target_bytes=target_size(snapshot, 0), proof="rows")

    def _bins(
        self, spec: RewriteSpec, sources: tuple[SourceFile, ...], left_out: Mapping[int, BitMap64]
    ) -> dict[int, RewrittenBin]:
        """Writes the rows of files again, except those at some positions, and proves the result.

        Files that cannot be written are skipped.
        """
        bins = [
            Bin(number=number, sources=(_without(sources[number], gone),), reasons=(_REASON,))
            for number, gone in left_out.items()
        ]
        engine = LocalEngine(self._table.store, new_id=self._context.new_id)
        done: dict[int, RewrittenBin] = {}
        for outcome in engine.rewrite(bins, spec, workers=self._plan.options.workers):
            source, result = sources[outcome.number], outcome.done
            if result is None:
                self._skip(source, outcome.problem or "the file cannot be rewritten")
            elif not result.bin.sources:
                refusal = result.refused[0]
                self._skip(source, refusal.problem, damaged=refusal.damaged)
            else:
                done[outcome.number] = result
        return done

    def _stage(self, base: Snapshot, change: Change) -> Transaction:
        preserved = True
        if change.rewrites or change.feed.num_rows:
            broken = self._contract.broken_by(base)
            if broken is None and len(change.of) and has_feed(base) != bool(change.feed.num_rows):
                broken = "the change data feed of the table was switched"
            if broken is not None:
                raise self._conflict(base, broken)
        if change.rewrites:
            preserved = self._contract.spec.files.layout.tracks_rows
        transaction = Transaction(
            base,
            OPERATION,
            parameters={"predicate": [self._plan.predicate]},
            # Files of other writers that were added since are left to the next run.
            isolation=IsolationLevel.SNAPSHOT_ISOLATION,
            row_ids=RowIds(preserved=preserved),
            writer=self._context.writer(self._plan.options),
        )
        transaction.stage_info(metrics=change.metrics())
        transaction.read_files(change.before)
        transaction.stage_removes(change.removes)
        if change.after.num_rows:
            transaction.stage_adds(change.after)
        if change.feed.num_rows:
            transaction.stage_changes(change.feed)
        return transaction

    def _count(self, change: Change, outcome: Landed) -> None:
        self.version = outcome.version
        self.commits += 1
        whole = change.whole
        self.files += int(whole.sum())
        self.bytes += int(change.size[whole].sum())
        replaced = change.files - int(whole.sum())
        if change.rewrites:
            self.rewritten += replaced
        else:
            self.marked += replaced
        known = bool((change.rows >= 0).all())
        self.rows = self.rows + int(change.rows.sum()) if known and self.rows is not None else None

    def _skip(self, source: SourceFile, problem: str, *, damaged: bool = False) -> None:
        self.skipped[source.path] = RefusedFile(path=source.path, problem=problem, damaged=damaged)

    def _limit_at(self, snapshot: Snapshot) -> Limit:
        require_expirable(snapshot, self._plan.options.mixed)
        return limit_of(snapshot, self._plan.options, self._plan.delete_before)

    def _require_same(self, snapshot: Snapshot) -> None:
        if self._limit_at(snapshot) != self._limit:
            raise self._conflict(snapshot, "the column of the limit changed")

    def _conflict(self, snapshot: Snapshot, problem: str) -> CommitConflictError:
        return CommitConflictError(
            problem, table=snapshot.table, version=snapshot.version, remedy="run again"
        )


def _expired(marked_files: list[Marked]) -> np.ndarray:
    return np.array([marked.expired for marked in marked_files], np.int64)


def _whole(adds: pa.Table, marked_files: list[Marked], numbers: list[int]) -> Change:
    """Returns the removal of some files, whose expired rows are known."""
    before = adds.take(pa.array(numbers, pa.int64()))
    return Change(before=before, rows=_expired([marked_files[number] for number in numbers]))


def _without(source: SourceFile, gone: BitMap64) -> SourceFile:
    """Returns the source of a bin that leaves out the rows at some positions."""
    return replace(source, deletion_vector=DeletionVectorDescriptor.inline(gone))
