"""Divides a log among tasks, and limits the size of the batches that reach Python."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from delta_maintenance.spark.log_shares import SCHEMA, LogPart
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.read.snapshot import Snapshot

_Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

LOG_BYTES_PER_TASK = 32 << 20
_LOG_FILES_PER_TASK = 2000
_LABELS_TRIED = 32
_ARROW_BYTES_PER_TASK = 128 << 20
_ROWS_PER_BATCH = ("spark.sql.execution.arrow.maxRecordsPerBatch", "16")


def log_parts(
    snapshot: Snapshot,
    *,
    log_bytes_per_task: int = LOG_BYTES_PER_TASK,
    only: Collection[str] | None = None,
) -> tuple[list[LogPart], int]:
    """Returns the files that make up a version in parts, the newest part first, and the number of
    parts that belong to the tail.

    `only` limits the sidecars of the checkpoint to these paths.
    """
    parts: list[LogPart] = [*adjacent_parts(snapshot.segment.tail, log_bytes_per_task)]
    tail = len(parts)
    if snapshot.checkpoint is not None:
        parts += snapshot.checkpoint.parts(_ARROW_BYTES_PER_TASK, only=only)
    return parts, tail


def adjacent_parts(
    entries: Sequence[LogEntry], log_bytes_per_task: int
) -> list[tuple[LogEntry, ...]]:
    """Divides files into parts of adjacent files by ascending version, the newest part first."""
    parts: list[tuple[LogEntry, ...]] = []
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


def share_labels(spark: SparkSession, shares: int) -> tuple[int, ...]:
    """Returns a number for each share such that Spark's hash sends every share to a different task.

    With arbitrary numbers, some tasks would get several shares and others none.
    """
    if shares == 1:
        return (0,)
    task = functions.expr(f"pmod(hash(label), {shares})")
    numbers = spark.range(0, shares * _LABELS_TRIED, 1, 1).selectExpr("int(id) AS label")
    found = numbers.groupBy(task).agg(functions.min("label").alias("label")).collect()
    labels = [row.label for row in found]
    return (*labels, *range(-1, len(labels) - shares - 1, -1))


def shares(spark: SparkSession, read: _Task, *, parts: int, labels: Sequence[int]) -> DataFrame:
    """Calls `read` with the number of each part; one task receives each share, sorted by age."""
    return by_label(spark.range(0, parts, 1, parts).mapInArrow(read, SCHEMA), len(labels))


def by_label(rows: DataFrame, labels: int) -> DataFrame:
    """Sends rows of `log_shares.SCHEMA` with the same label to one task, sorted by age."""
    return rows.repartition(labels, "label").sortWithinPartitions("label", "age")


@contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Prevents Spark from passing thousands of payloads to Python at once."""
    name, value = _ROWS_PER_BATCH
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)
