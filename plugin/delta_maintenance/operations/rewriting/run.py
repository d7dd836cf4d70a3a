"""One run over the bins of a choice: rewrite, prove, commit, report.

The number of commits is kept small. Rewritten bins are committed together when their new files have
1 GiB or a tenth of the bytes of the run, whichever is more, when they have 100,000 sources and new
files, or when the first of them has waited for ten minutes. A run that is killed loses the bins
that wait; their files are orphans, which a vacuum deletes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError, table_text
from delta_maintenance.operations.rewriting.commits import CommitSettings, RewriteCommits
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.operations.rewriting.engine import BinEngine, BinOutcome
from delta_maintenance.operations.rewriting.models import BinReport, RefusedFile
from delta_maintenance.operations.rewriting.pending import Fate, Pending
from delta_maintenance.operations.rewriting.sources import source_files
from delta_maintenance.protocol.schema.types import DeltaType
from delta_maintenance.protocol.statistics.as_json import num_records
from delta_maintenance.table.commit.beside_writers import delete_uncommitted
from delta_maintenance.table.data.bins import Bin, ClusteredOutcome, RefusedSource
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_logger = logging.getLogger(__name__)

COMMIT_BYTES = 1 << 30
"""The size of new files in bytes at which they are committed."""
MOST_COMMITS = 10
"""The approximate number of commits of a large run."""
_ACTIONS = 100_000
_NAMED_SOURCES = 10_000
"""A result names the sources of a run if there are at most this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run."""

    commit: CommitSettings
    commit_bytes: int | None = None
    """The bytes of new files after which they are committed; by default the larger of 1 GiB and a
    tenth of the bytes of the run.
    """
    commit_interval: timedelta = timedelta(minutes=10)
    until: datetime | None = None
    """No bin is started after this instant."""
    workers: int | None = None
    """The number of bins that are rewritten at the same time; by default, the engine chooses it."""
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """The bins of a run with the adds of their sources."""

    adds: pa.Table
    """The adds by bin, in the order of reading."""
    bins: np.ndarray[Any, np.dtype[np.int64]]
    """The bin of each add, ascending from 0."""
    reasons: tuple[tuple[str, ...], ...]
    """The reasons for each add."""
    partition_types: Mapping[str, DeltaType]
    """The types of the partition columns, whose values get the canonical spelling."""
    _rows: pa.Array = field(init=False, repr=False)
    """The physical rows of each add; null if the log does not contain the number."""

    def __post_init__(self) -> None:
        # At once, because reading the statistics of each bin has a high fixed cost.
        object.__setattr__(self, "_rows", num_records(self.adds["stats"]))

    @property
    def count(self) -> int:
        """The number of bins."""
        return int(self.bins[-1]) + 1 if len(self.bins) else 0

    def adds_of(self, number: int) -> pa.Table:
        """Returns the adds of one bin."""
        start, end = self._range(number)
        return self.adds.slice(start, end - start)

    def bin(self, number: int) -> Bin:
        """Returns one bin in the form that engines take."""
        start, end = self._range(number)
        rows = self._rows.slice(start, end - start)
        sources = source_files(self.adds_of(number), rows, types=self.partition_types)
        return Bin(number=number, sources=sources, reasons=self.reasons[start:end])

    def reasons_of(self, number: int) -> tuple[str, ...]:
        """Returns the distinct reasons of all sources of a bin."""
        start, end = self._range(number)
        return tuple(dict.fromkeys(name for reasons in self.reasons[start:end] for name in reasons))

    @property
    def largest_first(self) -> list[int]:
        """The numbers of the bins by descending size. The last bins, for which there are fewer than
        workers, are then the small ones.
        """
        sizes = np.bincount(self.bins, self.adds["size"].to_numpy(), self.count)
        order: list[int] = np.argsort(-sizes, kind="stable").tolist()
        return order

    def _range(self, number: int) -> tuple[int, int]:
        start, end = np.searchsorted(self.bins, [number, number + 1])
        return int(start), int(end)


class RewriteRun:
    """One run. The reports are complete even if the run ends with an error."""

    def __init__(
        self,
        table: Table,
        snapshot: Snapshot,
        contract: Contract,
        work: Work,
        engine: BinEngine,
        settings: RunSettings,
    ) -> None:
        self._table = table
        self._store = table.store
        self._contract = contract
        self._work = work
        self._engine = engine
        self._settings = settings
        self.commits = RewriteCommits(table, snapshot, contract, settings.commit)
        self.commits.plan_for(work.adds)
        self._ready: list[Pending] = []
        self._ready_since: datetime | None = None
        self._ready_bytes = self._ready_actions = 0
        """Of all bins that are ready. Tens of thousands can be, if their partitions are small."""
        self._pending: dict[int, Pending] = {}
        self._fates: dict[int, tuple[Fate, str | None]] = {}
        self.refused: list[RefusedFile] = []
        self._bytes_done = 0
        self._total_bytes: int = pc.sum(work.adds["size"]).as_py() or 0
        self._named = len(work.bins) <= _NAMED_SOURCES

    def through(self) -> None:
        """Rewrites and commits all bins. The failure of a bin is recorded in its report.

        Errors of commits end the run and are raised, in particular `CommitUnknownError`.
        """
        try:
            outcomes = self._engine.rewrite(
                self._upcoming(), self._contract.spec, workers=self._settings.workers
            )
            with closing(outcomes):
                for outcome in outcomes:
                    self._take(outcome)
                    self._commit_if_due()
            self._commit()
        except CommitUnknownError:
            for pending in self._ready:
                if pending.fate is None:
                    pending.fate = "unknown"
            raise
        except DeltaMaintenanceError as error:
            failed = [pending for pending in self._ready if pending.fate is None]
            for pending in failed:
                pending.fate, pending.problem = "failed", str(error)
            self._delete_files_of(failed)
            raise

    def _delete_files_of(self, failed: Iterable[Pending]) -> None:
        """Deletes the files of bins whose commit failed."""
        names = [
            output.name
            for pending in failed
            for done in (pending.done, pending.current)
            if done is not None
            for output in done.outputs
        ]
        delete_uncommitted(self._table, names, version=self.commits.version)

    def reports(self) -> tuple[BinReport, ...]:
        """Returns the report of each bin."""
        return tuple(self._report(number) for number in range(self._work.count))

    def _upcoming(self) -> Iterator[Bin]:
        until = self._settings.until
        for number in self._work.largest_first:
            if self.commits.table_changed is not None:
                return
            if until is not None and self._now() >= until:
                return
            yield self._work.bin(number)

    def _take(self, outcome: BinOutcome) -> None:
        number, done = outcome.number, outcome.done
        adds = self._work.adds_of(number)
        if done is None:
            assert outcome.failure is not None
            self._fates[number] = outcome.failure, outcome.problem
            shown = table_text(self._store.root)
            _logger.error("%s: bin %d is not committed: %s", shown, number, outcome.problem)
            return
        self.refused += [_refused(refusal) for refusal in done.refused]
        if not done.bin.sources:
            problem = done.refused[0].problem if done.refused else None
            self._fates[number] = "refused", problem
            return
        if len(done.bin.sources) < adds.num_rows:
            source_keys = {source.key for source in done.bin.sources}
            every = self._work.bin(number).sources
            rows = [at for at, source in enumerate(every) if source.key in source_keys]
            adds = adds.take(pa.array(rows, pa.int64()))
        self._hold(Pending(done=done, adds=adds))

    def _hold(self, pending: Pending) -> None:
        self._pending[pending.done.bin.number] = pending
        self._ready.append(pending)
        done = pending.done
        self._ready_bytes += sum(output.size for output in done.outputs)
        self._ready_actions += len(done.bin.sources) + len(done.outputs)
        if self._ready_since is None:
            self._ready_since = self._now()
        self._bytes_done += sum(source.size for source in pending.done.bin.sources)
        if self._settings.progress is not None:
            self._settings.progress("bins rewritten", len(self._pending), self._work.count)
            self._settings.progress(
                "bytes rewritten", self._bytes_done, self._total_bytes, unit="bytes"
            )

    def _commit_if_due(self) -> None:
        if not self._ready:
            return
        now = self._now()
        assert self._ready_since is not None
        waited = now - self._ready_since
        limit = self._settings.commit_bytes or max(COMMIT_BYTES, self._total_bytes // MOST_COMMITS)
        is_large = self._ready_bytes >= limit or self._ready_actions >= _ACTIONS
        if is_large or waited >= self._settings.commit_interval:
            self._commit()

    def _commit(self) -> None:
        if not self._ready:
            return
        self.commits.commit(self._ready)
        self._ready, self._ready_since = [], None
        self._ready_bytes = self._ready_actions = 0

    def _report(self, number: int) -> BinReport:
        adds = self._work.adds_of(number)
        pending = self._pending.get(number)
        fate, problem = self._fates.get(number, ("not-started", None))
        report = BinReport(
            number=number,
            partition=dict(adds["partitionValues"][0].as_py() or ()),
            reasons=self._work.reasons_of(number),
            num_sources=adds.num_rows,
            sources=tuple(adds["path"].to_pylist()) if self._named else (),
            bytes_before=pc.sum(adds["size"]).as_py() or 0,
            fate=fate,
            problem=problem,
        )
        if pending is None:
            return report
        result, sources = pending.result, pending.adds
        return replace(
            report,
            num_sources=sources.num_rows - len(pending.removed),
            bytes_before=pc.sum(sources["size"]).as_py() or 0,
            outputs=result.paths,
            bytes_after=sum(output.size for output in result.outputs),
            rows=result.sums.rows,
            copied=result.copied,
            row_sums=str(result.sums)
            if self._contract.spec.proof == "rows" and not result.copied
            else None,
            fate=pending.fate or "unknown",
            version=pending.version,
            problem=pending.problem,
            **_depths(result.clustered),
        )

    def _now(self) -> datetime:
        return self._settings.commit.writer.now()


def _depths(clustered: ClusteredOutcome | None) -> dict[str, Any]:
    if clustered is None:
        return {}
    return {
        "is_clustered": clustered.is_clustered,
        "depth_before": clustered.before.files,
        "depth_after": clustered.after.files,
        "unbounded": clustered.unbounded,
    }


def _refused(refusal: RefusedSource) -> RefusedFile:
    return RefusedFile(path=refusal.source.path, problem=refusal.problem, damaged=refusal.damaged)
