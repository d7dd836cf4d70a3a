"""Reads footers on a cluster, for the row counts of data files that have no statistics.

Uses plain PySpark with Python workers, as for sidecars. The driver receives and holds the files of
one commit at a time. Executors only read footers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from delta_maintenance.spark.parts import gather, in_parts
from delta_maintenance.spark.session import JobSession, executor_options
from delta_maintenance.storage import open_store
from delta_maintenance.table.data.row_counts import RowCounts, count_rows

_COUNTS = pa.schema({"rows": pa.int64(), "problem": pa.string()})

_FILES_PER_TASK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterReading:
    """The inputs of a task; they are sent to executors."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts rows of a path to rows of a count, or of the reason why there is none.

        Errors of the store are raised, so that Spark retries the task.
        """
        with closing(open_store(self.uri, self.storage_options)) as store:
            for batch in batches:
                found = count_rows(store, batch.column(0))
                nothing = pa.nulls(batch.num_rows, pa.string())
                problems = pa.array(found.problems, pa.string())
                told = pc.replace_with_mask(nothing, pc.is_null(found.counts), problems)
                yield pa.RecordBatch.from_arrays([found.counts, told], schema=_COUNTS)


class SparkFooters:
    """A `RowCounter` on a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        table_uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        files_per_task: int = _FILES_PER_TASK,
    ) -> None:
        """Raises `RefusedError` for a table that executors cannot reach."""
        options = executor_options(table_uri, storage_options)
        self._spark = spark
        self._reading = FooterReading(uri=table_uri, storage_options=options)
        self._files_per_task = files_per_task

    @classmethod
    def of_job(cls, job: JobSession) -> Self:
        """Returns the engine of a job."""
        return cls(job.spark, job.table_uri, job.storage_options)

    def __call__(self, paths: pa.StringArray) -> RowCounts:
        """See `RowCounter`."""
        parts = in_parts(pa.table({"path": paths}), self._files_per_task)
        found = gather(self._spark, parts, self._reading.read, schema=_COUNTS)
        counts = pa.concat_arrays([pa.array([], pa.int64()), *found["rows"].chunks])
        return RowCounts(counts=counts, problems=tuple(found["problem"].drop_null().to_pylist()))
