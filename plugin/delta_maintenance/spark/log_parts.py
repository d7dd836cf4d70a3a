"""How a log is shared out: what one task reads of it, and how much a batch hands to Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from delta_maintenance.spark.log_shares import LogPart
from delta_maintenance.table.log_segment import LogEntry
from delta_maintenance.table.snapshot import Snapshot

LOG_BYTES_PER_TASK = 32 << 20
_LOG_FILES_PER_TASK = 2000
_ARROW_BYTES_PER_TASK = 128 << 20
_ROWS_PER_BATCH = ("spark.sql.execution.arrow.maxRecordsPerBatch", "16")


def log_parts(
    snapshot: Snapshot, *, log_bytes_per_task: int = LOG_BYTES_PER_TASK
) -> tuple[list[LogPart], int]:
    """The files that make up a version, the newest part first, and how many parts are its tail."""
    tail = _tail_parts(snapshot.segment.tail, log_bytes_per_task)
    checkpoint = snapshot.checkpoint
    parts = [*tail, *(checkpoint.parts(_ARROW_BYTES_PER_TASK) if checkpoint is not None else ())]
    return parts, len(tail)


@contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Keeps Spark from handing thousands of payloads to Python at once."""
    name, value = _ROWS_PER_BATCH
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _tail_parts(entries: Sequence[LogEntry], log_bytes_per_task: int) -> list[LogPart]:
    """Adjacent files together, the newest part first."""
    parts: list[LogPart] = []
    together: list[LogEntry] = []
    size = 0
    for entry in reversed(entries):
        if together and (
            size + entry.status.size > log_bytes_per_task or len(together) == _LOG_FILES_PER_TASK
        ):
            parts.append(tuple(reversed(together)))
            together, size = [], 0
        together.append(entry)
        size += entry.status.size
    if together:
        parts.append(tuple(reversed(together)))
    return parts
