"""The Spark engine of `recompute-stats`: executors read footers and rows as the local engine does.

Only DataFrame operations are used, so that the engine also runs on Spark Connect. No row of the
table reaches the driver. It holds the files of one commit, as with the local engine, and receives
their statistics.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
from pyspark.sql import SparkSession

from delta_maintenance.operations.recompute_stats.reading import FileWork, StatisticsReading
from delta_maintenance.spark.log_shares import TableAddress
from delta_maintenance.spark.parts import gather, in_turn
from delta_maintenance.spark.session import JobSession, executor_options

_WORKS = pa.schema({"work": pa.binary()})
"""Pickled `FileWork`."""

_FILES_PER_TASK = 100
_BYTES_PER_TASK = 256 << 20
"""The size of the files that a task decodes."""


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
                files = [pickle.loads(work) for work in batch.column(0).to_pylist()]
                # A task has one core.
                found = self.reading.read(store, files, decode=self.decode, workers=1)
                yield from _works(found).to_batches()


class SparkStatistics:
    """A `StatisticsEngine` on a Spark session."""

    decoded_bytes = 256 << 30

    def __init__(self, job: JobSession, *, files_per_task: int = _FILES_PER_TASK) -> None:
        """Raises `RefusedError` for a table that executors cannot reach."""
        options = executor_options(job.table_uri, job.storage_options)
        self._spark: SparkSession = job.spark
        self._address = TableAddress(uri=job.table_uri, storage_options=options)
        self._files_per_task = files_per_task

    @classmethod
    def of_job(cls, job: JobSession) -> Self:
        """Returns the engine of a job."""
        return cls(job)

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
        size = sum(work.file.size for work in files) if decode else 0
        tasks = max(-(-len(files) // self._files_per_task), size // _BYTES_PER_TASK)
        parts = in_turn(_works(files), min(tasks, len(files)))
        found = gather(self._spark, parts, task.read, schema=_WORKS)
        return map(pickle.loads, found["work"].to_pylist())


def _works(files: Iterable[FileWork]) -> pa.Table:
    return pa.table([pa.array([pickle.dumps(work) for work in files], pa.binary())], schema=_WORKS)
