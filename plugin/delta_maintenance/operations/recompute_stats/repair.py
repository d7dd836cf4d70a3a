"""New statistics for a batch of files: from their footers where these are safe, else from rows.

A file with a deletion vector gets the exact statistics of its live rows if rows must be decoded, or
if it had exact ones. Otherwise it gets those of all physical rows, which are marked as not tight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations.recompute_stats import RecomputeStatsOptions
from delta_maintenance.operations.recompute_stats.defects import Defects
from delta_maintenance.operations.recompute_stats.reading import (
    FileWork,
    StatisticsEngine,
    StatisticsReading,
)
from delta_maintenance.operations.rewriting.models import RefusedFile
from delta_maintenance.operations.rewriting.sources import source_files
from delta_maintenance.protocol.columns import booleans, integers, to_bools
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.audit import (
    ComputedStatistics,
    RequiredStatistics,
    with_statistics,
)
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf
from delta_maintenance.protocol.statistics.comparison import compare_column


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
        engine: StatisticsEngine,
        layout: DataFileLayout,
        required: RequiredStatistics,
        options: RecomputeStatsOptions,
        *,
        every: RequiredStatistics,
    ) -> None:
        """`every` has the columns that are compared if the options ask for it."""
        self._engine = engine
        self._reading = StatisticsReading(layout=layout, leaves=tuple(required.leaves))
        self._every = every
        self._required = required
        self._options = options
        self.confirmed = 0
        """Files that were opened because of their writer or to be compared, and whose statistics
        are kept."""
        self.skipped: list[RefusedFile] = []
        """Files that cannot be read."""

    def repaired(self, adds: pa.Table) -> Iterator[Repaired]:
        """Yields files with new statistics, those from footers first.

        `adds` are those of `affected_files`. Files that cannot be read are in `skipped`; errors of
        the store are raised.
        """
        defects = Defects.of(adds, self._required, self._options)
        reading = replace(self._reading, leaves=(*self._required.leaves, *self._others(defects)))
        tasks = self._read(reading, self._tasks(adds, defects, reading), decode=False)
        ready = self._contradicted(defects, reading, [task for task in tasks if not task.to_decode])
        if ready:
            yield Repaired(adds=self._with_statistics(adds, defects, reading, ready), decoded=False)
        to_decode = [task for task in tasks if task.to_decode]
        for part in _parts(to_decode, self._engine.decoded_bytes):
            part = self._contradicted(defects, reading, self._read(reading, part, decode=True))
            if part:
                yield Repaired(
                    adds=self._with_statistics(adds, defects, reading, part), decoded=True
                )

    def _others(self, defects: Defects) -> list[StatisticsLeaf]:
        """Returns the columns to compare that need not have statistics."""
        if not self._options.check_files:
            return []
        required = {leaf.path for leaf in self._required.leaves}
        others = (leaf for leaf in self._every.leaves if leaf.path not in required)
        return defects.audited.stated_columns(others)

    def _read(
        self, reading: StatisticsReading, tasks: Sequence[FileWork], *, decode: bool
    ) -> list[FileWork]:
        workers = self._options.workers
        file_results = self._engine.read(reading, tasks, decode=decode, workers=workers)
        return sorted(filter(self._is_needed, file_results), key=lambda task: task.row)

    def _contradicted(
        self, defects: Defects, reading: StatisticsReading, tasks: list[FileWork]
    ) -> list[FileWork]:
        """Returns the files to commit, with the columns whose statistics differ from the contents
        or have another defect.
        """
        if not self._options.check_files or not tasks:
            return tasks
        rows = np.array([task.row for task in tasks], np.int64)
        audited = defects.audited.take(rows)
        counts = pa.array([task.rows for task in tasks], pa.int64())
        wrong = np.zeros((len(reading.leaves), len(tasks)), np.bool_)
        for at, leaf in enumerate(reading.leaves):
            contents = [task.bounds.get(leaf.path) for task in tasks]
            compared = compare_column(audited, leaf, contents, physical_rows=counts, live=True)
            wrong[at] = compared.wrong | compared.loose
        for at, mask in enumerate(defects.replaced):
            wrong[at] |= mask[rows]
        miscounted = ~to_bools(pc.fill_null(pc.equal(audited.rows, counts), False))
        needed = wrong.any(axis=0) | miscounted | defects.certain[rows]
        for at, leaf in enumerate(self._required.leaves):
            # Without them, no new bounds of the file could be stated.
            wrong[at] |= needed & audited.lacks_boolean_bounds(leaf)
        for at, task in enumerate(tasks):
            task.leaves = np.flatnonzero(wrong[:, at]).tolist()
            needed[at] |= bool(task.suspect)
            # Whether bounds are tight is stated for the whole file.
            if not task.has_vector:
                stays = {reading.leaves[leaf].path for leaf in (*task.leaves, *task.suspect)}
                task.bounds = {path: task.bounds[path] for path in stays}
        self.confirmed += int((~needed).sum())
        return [task for task, is_needed in zip(tasks, needed.tolist(), strict=True) if is_needed]

    def _tasks(
        self, adds: pa.Table, defects: Defects, reading: StatisticsReading
    ) -> list[FileWork]:
        leaves, compares = self._required.leaves, self._options.check_files
        audited = defects.audited
        says_something = ~np.logical_and.reduce(defects.without_null_count, axis=0, initial=True)
        was_exact = to_bools(audited.tight) & says_something
        was_exact = audited.has_vector & (was_exact | compares)
        # Files of one writer usually have the same defects, so few combinations occur.
        shape = (adds.num_rows, len(leaves))
        both = np.concatenate(
            [
                np.array(masks, np.bool_).reshape(shape[::-1]).T
                for masks in (defects.replaced, defects.suspect)
            ],
            axis=1,
        )
        kinds, kind_of = np.unique(both, axis=0, return_inverse=True)
        chosen = [(np.flatnonzero(row) % shape[1]).tolist() for row in kinds]
        replaced = [int(row[: shape[1]].sum()) for row in kinds]
        every = range(len(reading.leaves))
        # Beside a deletion vector, some writers count visible rows only.
        counts = pc.if_else(
            booleans(audited.has_vector | compares), pa.scalar(None, pa.int64()), audited.rows
        )
        files = source_files(adds, counts)
        return [
            FileWork(
                row=row,
                file=file,
                leaves=every if compares else chosen[kind][: replaced[kind]],
                suspect=chosen[kind][replaced[kind] :],
                is_certain=certain,
                was_exact=exact,
            )
            for row, (file, kind, certain, exact) in enumerate(
                zip(
                    files,
                    kind_of.ravel().tolist(),
                    defects.certain.tolist(),
                    was_exact.tolist(),
                    strict=True,
                )
            )
        ]

    def _is_needed(self, task: FileWork) -> bool:
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

    def _with_statistics(
        self,
        adds: pa.Table,
        defects: Defects,
        reading: StatisticsReading,
        tasks: Sequence[FileWork],
    ) -> pa.Table:
        rows = np.array([task.row for task in tasks], np.int64)
        computed = [
            ComputedStatistics(
                rows=task.rows, bounds=task.bounds, tight=task.live or not task.has_vector
            )
            for task in tasks
        ]
        return with_statistics(
            adds.take(integers(rows)),
            defects.audited.take(rows),
            computed,
            extra_leaves=reading.leaves[len(self._required.leaves) :],
        )


def _parts(tasks: Sequence[FileWork], most_bytes: int) -> Iterator[list[FileWork]]:
    """Divides files by their total size."""
    part: list[FileWork] = []
    size = 0
    for task in tasks:
        part.append(task)
        size += task.file.size
        if size >= most_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part
