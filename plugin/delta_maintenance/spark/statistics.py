"""The Spark engines of `recompute-stats` and `backfill-row-ids`: executors read footers and rows as
the local engines do.

Only DataFrame operations are used, so that the engine also runs on Spark Connect. No row of the
table reaches the driver. It holds the files of one commit, as with the local engine, and receives
their statistics.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.recompute_stats.reading import FileWork, StatisticsReading
from delta_maintenance.spark.log_shares import TableAddress, gather, in_parts, in_turn
from delta_maintenance.spark.session import JobSession, SparkEngine
from delta_maintenance.table.data.footers import RowCounts, count_rows

_WORKS = pa.schema({"work": pa.binary()})
"""Pickled `FileWork`."""

_FILES_PER_TASK = 100
_BYTES_PER_TASK = 256 << 20
"""The size of the files that a task decodes."""
_COUNTS = pa.schema({"rows": pa.int64(), "problem": pa.string()})
_FOOTERS_PER_TASK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsTask:
    """The inputs of a task; they are sent to executors."""

    address: TableAddress
    reading: StatisticsReading
    decode: bool

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reads files: receives and returns pickled `FileWork`.

        Errors of the store are raised, so that Spark retries the task.
        """
        with self.address.store() as store:
            for batch in batches:
                files = [pickle.loads(pickled_work) for pickled_work in batch.column(0).to_pylist()]
                # A task has one core.
                read_files = self.reading.read(store, files, decode=self.decode, workers=1)
                yield from _works(read_files).to_batches()


class SparkStatistics(SparkEngine):
    """A `StatisticsEngine` on a Spark session."""

    decoded_bytes = 256 << 30

    def read(
        self,
        reading: StatisticsReading,
        files: Sequence[FileWork],
        *,
        decode: bool,
        workers: int | None = None,
    ) -> Iterable[FileWork]:
        """See `StatisticsEngine`. The cluster decides how many files are read at the same time."""
        if not files:
            return []
        task = StatisticsTask(address=self._address, reading=reading, decode=decode)
        size = sum(file_work.file.size for file_work in files) if decode else 0
        tasks = max(-(-len(files) // _FILES_PER_TASK), size // _BYTES_PER_TASK)
        file_parts = in_turn(_works(files), min(tasks, len(files)))
        read_files = gather(self._spark, file_parts, task.read, schema=_WORKS)
        return map(pickle.loads, read_files["work"].to_pylist())


def _works(files: Iterable[FileWork]) -> pa.Table:
    return pa.table(
        [pa.array([pickle.dumps(file_work) for file_work in files], pa.binary())], schema=_WORKS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterReading:
    """The inputs of a task; they are sent to executors."""

    address: TableAddress

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts rows of a path to rows of a count, or of the reason why there is none.

        Errors of the store are raised, so that Spark retries the task.
        """
        with self.address.store() as store:
            for batch in batches:
                row_counts = count_rows(store, batch.column(0))
                nothing = pa.nulls(batch.num_rows, pa.string())
                problems = pa.array(row_counts.problems, pa.string())
                problem_column = pc.replace_with_mask(
                    nothing, pc.is_null(row_counts.counts), problems
                )
                yield pa.RecordBatch.from_arrays(
                    [row_counts.counts, problem_column], schema=_COUNTS
                )


class SparkFooters(SparkEngine):
    """A `RowCounter` on a Spark session."""

    def __init__(self, job: JobSession, *, files_per_task: int = _FOOTERS_PER_TASK) -> None:
        super().__init__(job)
        self._reading = FooterReading(address=self._address)
        self._files_per_task = files_per_task

    def __call__(self, paths: pa.StringArray) -> RowCounts:
        """See `RowCounter`."""
        path_parts = in_parts(pa.table({"path": paths}), self._files_per_task)
        count_rows = gather(self._spark, path_parts, self._reading.read, schema=_COUNTS)
        counts = pa.concat_arrays([pa.array([], pa.int64()), *count_rows["rows"].chunks])
        return RowCounts(
            counts=counts, problems=tuple(count_rows["problem"].drop_null().to_pylist())
        )
