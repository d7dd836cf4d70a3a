"""New statistics for a batch of files: from their footers where these are safe, else from rows.

A file with a deletion vector gets the exact statistics of its live rows if rows must be decoded, or
if it had exact ones. Otherwise it gets those of all physical rows, which are marked as not tight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations.recompute_stats.defects import Defects
from delta_maintenance.operations.recompute_stats.options import RecomputeStatsOptions
from delta_maintenance.operations.recompute_stats.reading import (
    FileWork,
    StatisticsEngine,
    StatisticsReading,
)
from delta_maintenance.operations.rewriting.models import RefusedFile
from delta_maintenance.operations.rewriting.sources import source_files
from delta_maintenance.protocol.columns.arrays import integers, to_bools
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.audit import (
    ComputedStatistics,
    RequiredStatistics,
    with_statistics,
)


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
    ) -> None:
        self._engine = engine
        self._reading = StatisticsReading(layout=layout, leaves=tuple(required.leaves))
        self._required = required
        self._options = options
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
        tasks = self._read(self._tasks(adds, found), decode=False)
        ready = [task for task in tasks if not task.to_decode]
        if ready:
            yield Repaired(adds=self._with_statistics(adds, found, ready), decoded=False)
        to_decode = [task for task in tasks if task.to_decode]
        for part in _parts(to_decode, self._engine.decoded_bytes):
            part = self._read(part, decode=True)
            if part:
                yield Repaired(adds=self._with_statistics(adds, found, part), decoded=True)

    def _read(self, tasks: Sequence[FileWork], *, decode: bool) -> list[FileWork]:
        workers = self._options.workers
        found = self._engine.read(self._reading, tasks, decode=decode, workers=workers)
        return sorted(filter(self._is_needed, found), key=lambda task: task.row)

    def _tasks(self, adds: pa.Table, found: Defects) -> list[FileWork]:
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
        chosen = [(np.flatnonzero(row) % shape[1]).tolist() for row in kinds]
        replaced = [int(row[: shape[1]].sum()) for row in kinds]
        files = source_files(adds, audited.rows)
        return [
            FileWork(
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
        self, adds: pa.Table, found: Defects, tasks: Sequence[FileWork]
    ) -> pa.Table:
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
