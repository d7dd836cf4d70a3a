"""Reconciles a range of commits on a cluster, for one log compaction.

Uses plain PySpark with Python workers, as for sidecars. Each reading task reconciles some of the
commits and divides the remaining actions into shares by logical file; one task reconciles each
share. The driver appends the shares to the file, and holds one share at a time.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, Self

from pyspark.sql import SparkSession

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.delta_log.compaction import RangeContent
from delta_maintenance.spark import log_ranges
from delta_maintenance.spark.log_ranges import RangePiece, RangeReading, reconcile_shares, unpacked
from delta_maintenance.spark.log_shares import (
    LOG_BYTES_PER_TASK,
    TableAddress,
    adjacent_parts,
    share_labels,
    shares,
    small_batches,
)
from delta_maintenance.spark.session import JobSession, executor_options
from delta_maintenance.spark.share_writer import gravest
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.write.log_compactor import RangeWriter, ReconciledRange

_TOLD_ACTIONS = 100_000
"""The number of actions between two progress lines."""


class SparkRange:
    """A `RangeEngine` on a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        table_uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        progress: Progress | None = None,
        log_bytes_per_task: int = LOG_BYTES_PER_TASK,
    ) -> None:
        """Raises `RefusedError` for a table that executors cannot reach."""
        self._spark = spark
        options = executor_options(table_uri, storage_options)
        self._address = TableAddress(uri=table_uri, storage_options=options)
        self._progress = progress
        self._log_bytes_per_task = log_bytes_per_task

    @classmethod
    def of_job(cls, job: JobSession) -> Self:
        """Returns the engine of a job."""
        return cls(job.spark, job.table_uri, job.storage_options, progress=job.progress)

    def write_range(self, commits: Sequence[LogEntry], file: BinaryIO) -> ReconciledRange:
        """See `RangeEngine`."""
        parts = adjacent_parts(commits, self._log_bytes_per_task)
        size = sum(entry.status.size for entry in commits)
        # Writing tasks get about as many bytes as reading tasks.
        count = min(len(parts), max(1, math.ceil(size / self._log_bytes_per_task)))
        reading = RangeReading(
            address=self._address,
            parts=tuple(pickle.dumps(part) for part in parts),
            labels=share_labels(self._spark, count),
        )
        writer, content, plain = RangeWriter(file), RangeContent(), True
        errors: list[DeltaMaintenanceError] = []
        told = 0
        for piece in self._pieces(reading):
            if isinstance(piece, DeltaMaintenanceError):
                errors.append(piece)
                continue
            writer.write(piece.text)
            content.add(piece.content)
            plain &= piece.plain
            if self._progress is not None and content.actions >= told + _TOLD_ACTIONS:
                told = content.actions
                self._progress("actions", told, None)
        if errors:
            raise gravest(errors)
        return writer.written(content, plain=plain)

    def _pieces(self, reading: RangeReading) -> Iterator[RangePiece | DeltaMaintenanceError]:
        with small_batches(self._spark):
            divided = shares(
                self._spark, reading.read, parts=len(reading.parts), labels=reading.labels
            )
            for row in divided.mapInArrow(reconcile_shares, log_ranges.SCHEMA).toLocalIterator():
                yield unpacked(row.piece)
