"""New statistics for a batch of files: from their footers where these are safe, else from rows.

A file with a deletion vector gets the exact statistics of its live rows if rows must be decoded, or
if it had exact ones. Otherwise it gets those of all physical rows, which are marked as not tight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations.recompute_stats.defects import Defects
from delta_maintenance.operations.recompute_stats.options import RecomputeStatsOptions
from delta_maintenance.operations.rewriting.engine import default_workers
from delta_maintenance.operations.rewriting.models import RefusedFile
from delta_maintenance.operations.rewriting.sources import source_files
from delta_maintenance.parquet.nan_bounds import omits_bounds_of_nan
from delta_maintenance.protocol.columns.arrays import integers, to_bools
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.audit import (
    ComputedStatistics,
    RequiredStatistics,
    with_statistics,
)
from delta_maintenance.protocol.statistics.collect import ColumnBounds
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.data.footer_statistics import FooterReader, FooterStatistics
from delta_maintenance.table.data.row_counts import PARALLEL_READS
from delta_maintenance.table.data.row_statistics import row_statistics

_DECODED_BYTES = 8 << 30
"""The size of the files in bytes after which decoded statistics are committed."""


@dataclass(slots=True)
class _Task:
    """The work on one file."""

    row: int
    file: SourceFile
    leaves: Sequence[StatisticsLeaf] = ()
    """The columns to replace."""
    suspect: Sequence[StatisticsLeaf] = ()
    """Those to replace unless the writer of the file is trusted."""
    is_certain: bool = True
    """Whether it has a defect that does not depend on its writer."""
    was_exact: bool = False
    """Whether it has a deletion vector, and statistics of its live rows."""
    rows: int = 0
    bounds: dict[tuple[str, ...], ColumnBounds] = field(default_factory=dict)
    to_decode: Sequence[StatisticsLeaf] = ()
    live: bool = False
    problem: DeltaMaintenanceError | None = None

    @property
    def has_vector(self) -> bool:
        return self.file.deletion_vector is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """Adds with new statistics."""

    adds: pa.Table
    decoded: bool
    """Whether rows were decoded."""


class StatisticsRepair:
    """Computes statistics for the files of one table, and counts the work. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        layout: DataFileLayout,
        required: RequiredStatistics,
        options: RecomputeStatsOptions,
    ) -> None:
        self._store = store
        self._layout = layout
        self._required = required
        self._options = options
        self._footers = FooterReader(store, layout, required.leaves)
        self.confirmed = 0
        """Files that were opened because of their writer, and whose statistics are kept."""
        self.skipped: list[RefusedFile] = []
        """Files that cannot be read."""

    def repaired(self, adds: pa.Table) -> Iterator[Repaired]:
        """Yields files with new statistics, those from footers first.

        `adds` are those of `affected_files`. Files that cannot be read are in `skipped`; errors of
        the store are raised.
        """
        found = Defects.of(adds, self._required, self._options)
        tasks = self._tasks(adds, found)
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            footers = self._footers.read_all([task.file for task in tasks], pool)
            for task, found_there in zip(tasks, footers, strict=True):
                if isinstance(found_there, FooterStatistics):
                    self._take_in(task, found_there)
                else:
                    task.problem = found_there
        tasks = [task for task in tasks if self._is_needed(task)]
        ready = [task for task in tasks if not task.to_decode]
        if ready:
            yield Repaired(adds=self._with_statistics(adds, found, ready), decoded=False)
        for part in _parts([task for task in tasks if task.to_decode]):
            with ThreadPoolExecutor(self._options.workers or default_workers()) as pool:
                part = [task for task in pool.map(self._from_rows, part) if self._is_needed(task)]
            if part:
                yield Repaired(adds=self._with_statistics(adds, found, part), decoded=True)

    def _tasks(self, adds: pa.Table, found: Defects) -> list[_Task]:
        leaves = self._required.leaves
        audited = found.audited
        says_something = ~np.logical_and.reduce(found.without_null_count, axis=0, initial=True)
        was_exact = audited.has_vector & to_bools(audited.tight) & says_something
        # Files of one writer usually have the same defects, so few combinations occur.
        shape = (adds.num_rows, len(leaves))
        both = np.concatenate(
            [
                np.array(masks, np.bool_).reshape(shape[::-1]).T
                for masks in (found.replaced, found.suspect)
            ],
            axis=1,
        )
        kinds, kind_of = np.unique(both, axis=0, return_inverse=True)
        chosen = [[leaves[at % shape[1]] for at in np.flatnonzero(row)] for row in kinds]
        replaced = [int(row[: shape[1]].sum()) for row in kinds]
        files = source_files(adds, audited.rows)
        return [
            _Task(
                row=row,
                file=file,
                leaves=chosen[kind][: replaced[kind]],
                suspect=chosen[kind][replaced[kind] :],
                is_certain=certain,
                was_exact=exact,
            )
            for row, (file, kind, certain, exact) in enumerate(
                zip(
                    files,
                    kind_of.ravel().tolist(),
                    found.certain.tolist(),
                    was_exact.tolist(),
                    strict=True,
                )
            )
        ]

    def _take_in(self, task: _Task, found: FooterStatistics) -> None:
        """Uses the statistics of a footer, and finds the columns to decode."""
        task.rows = found.rows
        if task.suspect and not omits_bounds_of_nan(found.created_by):
            more = [leaf for leaf in task.suspect if leaf not in task.leaves]
            task.leaves = [*task.leaves, *more]
        if task.has_vector and task.leaves:
            # Whether bounds are tight is stated for the whole file.
            task.leaves = self._required.leaves
        by_leaf = dict(zip(self._required.leaves, found.bounds, strict=True))
        task.to_decode = [leaf for leaf in task.leaves if by_leaf[leaf] is None]
        if task.has_vector and (task.to_decode or task.was_exact):
            task.to_decode, task.live = task.leaves, True
        else:
            for leaf in task.leaves:
                bounds = by_leaf[leaf]
                if bounds is not None:
                    task.bounds[leaf.path] = bounds

    def _from_rows(self, task: _Task) -> _Task:
        try:
            task.bounds |= row_statistics(
                self._store, self._layout, task.file, task.to_decode, live=task.live
            )
        except StorageError:
            raise
        except (CorruptTableError, RefusedError, UnsupportedFeatureError) as error:
            task.problem = error
        return task

    def _is_needed(self, task: _Task) -> bool:
        if task.problem is not None:
            refused = RefusedFile(
                path=task.file.path,
                problem=str(task.problem),
                damaged=isinstance(task.problem, CorruptTableError),
            )
            self.skipped.append(refused)
            return False
        if not (task.leaves or task.is_certain):
            self.confirmed += 1
            return False
        return True

    def _with_statistics(self, adds: pa.Table, found: Defects, tasks: Sequence[_Task]) -> pa.Table:
        rows = np.array([task.row for task in tasks], np.int64)
        computed = [
            ComputedStatistics(
                rows=task.rows, bounds=task.bounds, tight=task.live or not task.has_vector
            )
            for task in tasks
        ]
        judged = np.array([bool(task.suspect) for task in tasks])
        return with_statistics(
            adds.take(integers(rows)), found.audited.take(rows), computed, tag=judged
        )


def _parts(tasks: Sequence[_Task]) -> Iterator[list[_Task]]:
    """Divides files by their total size."""
    part: list[_Task] = []
    size = 0
    for task in tasks:
        part.append(task)
        size += task.file.size
        if size >= _DECODED_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
