"""The Spark engine of `optimize` and `purge`: executors rewrite bins as the local engine does.

A job has one task, which rewrites one bin, or several small ones one after another. As many jobs
run at the same time as the cluster has cores, and a few more wait, so that finished bins are
committed while others are rewritten. There is no shuffle, and no row reaches the driver, which
holds the bins of the running jobs and what came back of the finished ones. DataFrame operations
alone, so it runs on Spark Connect as well.

Spark's own readers and writers are not used: settings such as `spark.sql.files.ignoreCorruptFiles`
change nothing, and a damaged file is refused as in the local engine.

A task that runs twice, because an executor was lost or a task was slow, writes new files under new
names. Only the names that come back with the result of a job are committed; other files are
ordinary unreferenced files. If a job fails after all attempts of Spark, each of its bins is tried
once more, alone, so that a bin that ends its executor affects no other bin.
"""

from __future__ import annotations

import os
import pickle
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession, functions

from delta_maintenance import clock
from delta_maintenance.clock import NewId
from delta_maintenance.errors import message_line
from delta_maintenance.operations.rewriting.engine import BinOutcome, rewritten
from delta_maintenance.spark.connect import is_connected
from delta_maintenance.spark.log_shares import TableAddress
from delta_maintenance.spark.session import JobSession
from delta_maintenance.spark.storage_access import executor_options
from delta_maintenance.table.data.rewrite import Bin, RewriteSpec

SCHEMA = "number long, outcome binary"
"""What comes back of a bin: its number, and a pickled `BinOutcome`."""

_BYTES_PER_TASK = 32 << 20
"""Bins are put into one task up to this size: a second of work, where a job costs a tenth."""
_BYTES_TO_OPEN = 256 << 10
"""The cost of opening a file, as the number of bytes that could be rewritten in that time."""
_MOST_TASKS = 512
"""Jobs at the same time; each has a thread of the driver."""
_MOST_FAILURES = 8
"""Failed jobs without a successful one between them, after which no bin is begun: the cluster does
not work."""
_MOST_PROBLEM = 400
_RANGE = 1 << 16
"""More numbers than a cluster has cores."""
_STACK = re.compile(r"\n\s*(?:Driver stacktrace:|JVM stacktrace:|at )")
"""Where the lines of the JVM begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinTask:
    """The inputs of a task, which are sent to executors."""

    address: TableAddress
    spec: RewriteSpec
    bins: tuple[Bin, ...]
    new_id: NewId
    """Called on the executor: each attempt of a task writes files of other names."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rewrites the bins, and returns a row of `SCHEMA` for each of them."""
        for _ in batches:
            # Spark waits until its one row is read.
            pass
        with self.address.store() as store:
            for work in self.bins:
                outcome = rewritten(store, work, self.spec, new_id=self.new_id)
                yield pa.RecordBatch.from_arrays(
                    [pa.array([work.number]), pa.array([pickle.dumps(outcome)], pa.binary())],
                    names=["number", "outcome"],
                )


class SparkRewriting:
    """A `BinEngine` on a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        table_uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        new_id: NewId = clock.new_id,
        bytes_per_task: int = _BYTES_PER_TASK,
    ) -> None:
        """The storage options are completed from the driver's environment: see
        `executor_options`. `RefusedError` for a table that executors cannot reach."""
        options = executor_options(table_uri, storage_options, os.environ)
        self._spark = spark
        self._address = TableAddress(uri=table_uri, storage_options=options)
        self._new_id = new_id
        self._bytes_per_task = bytes_per_task

    @classmethod
    def of_job(cls, job: JobSession) -> Self:
        """The engine of a job."""
        return cls(job.spark, job.table_uri, job.storage_options, new_id=job.new_id)

    def rewrite(
        self, bins: Iterable[Bin], spec: RewriteSpec, *, workers: int | None = None
    ) -> Iterator[BinOutcome]:
        """See `BinEngine`. Bins that wait for a core count as begun."""
        task = BinTask(address=self._address, spec=spec, bins=(), new_id=self._new_id)
        return _Run(self._spark, task, groups(bins, self._bytes_per_task)).outcomes(workers)


class _Run:
    """The jobs of one call of the engine."""

    def __init__(
        self, spark: SparkSession, task: BinTask, upcoming: Iterator[tuple[Bin, ...]]
    ) -> None:
        self._spark = spark
        self._task = task
        self._upcoming = upcoming
        self._tag = f"delta-maintenance-{clock.new_id()}"
        self._again: deque[tuple[Bin, BinOutcome]] = deque()
        """Bins that failed once, with how they failed."""
        self._failures = 0
        self._ended = False
        self._cores = _cores_of_server(spark) if is_connected(spark) else 1

    def outcomes(self, workers: int | None) -> Iterator[BinOutcome]:
        """The outcomes of all bins. If it is closed early, the running jobs are cancelled."""
        running: dict[Future[list[BinOutcome]], tuple[tuple[Bin, ...], bool]] = {}
        with ThreadPoolExecutor(_MOST_TASKS) as pool:
            try:
                while True:
                    most = min(workers or self._jobs_at_once(), _MOST_TASKS)
                    while len(running) < most:
                        bins, is_second = self._next()
                        if not bins:
                            break
                        running[self._submitted(pool, bins)] = bins, is_second
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield from self._completed(future, *running.pop(future))
            finally:
                self._ended = True
                if running:
                    with suppress(Exception):
                        self._spark.interruptTag(self._tag)

    def _jobs_at_once(self) -> int:
        """One job for each core of the cluster, and some that wait, so that no core does."""
        if not is_connected(self._spark):
            # Executors come and go. Of a session that has ended, the answer no longer matters.
            with suppress(Exception):
                self._cores = self._spark.sparkContext.defaultParallelism
        return self._cores + max(1, self._cores // 4)

    def _next(self) -> tuple[tuple[Bin, ...], bool]:
        """The bins of the next job, and whether it is their second; no bins if there is none."""
        if self._again:
            return (self._again.popleft()[0],), True
        if self._failures >= _MOST_FAILURES:
            return (), False
        return next(self._upcoming, ()), False

    def _submitted(
        self, pool: ThreadPoolExecutor, bins: tuple[Bin, ...]
    ) -> Future[list[BinOutcome]]:
        try:
            # With the job group and the scheduler pool of this thread.
            job = inheritable_thread_target(self._spark)(self._job)
        except Exception as error:
            # The session has ended.
            failed = Future[list[BinOutcome]]()
            failed.set_exception(error)
            return failed
        return pool.submit(job, bins)

    def _job(self, bins: tuple[Bin, ...]) -> list[BinOutcome]:
        self._spark.addTag(self._tag)
        if self._ended:
            return []
        task = replace(self._task, bins=bins)
        rows = self._spark.range(0, 1, 1, 1).mapInArrow(task.run, SCHEMA).collect()
        return [pickle.loads(row.outcome) for row in rows]

    def _completed(
        self, future: Future[list[BinOutcome]], bins: tuple[Bin, ...], is_second: bool
    ) -> Iterator[BinOutcome]:
        """The outcomes of a job, except of the bins that are to be tried again."""
        error = future.exception()
        if error is None:
            self._failures = 0
            outcomes = future.result()
        else:
            self._failures += 1
            outcomes = [_lost(work, error) for work in bins]
        by_number = {work.number: work for work in bins}
        for outcome in outcomes:
            if outcome.retryable and not is_second:
                self._again.append((by_number[outcome.number], outcome))
            else:
                yield outcome
        if self._failures >= _MOST_FAILURES:
            yield from (outcome for _, outcome in self._again)
            self._again.clear()


def groups(bins: Iterable[Bin], bytes_per_task: int) -> Iterator[tuple[Bin, ...]]:
    """Adjacent bins in groups of at most so many bytes; a larger bin is a group of its own.

    Takes no bin before the group is asked for, but for the one that no longer fits.
    """
    group: list[Bin] = []
    size = 0
    for work in bins:
        own = sum(source.size + _BYTES_TO_OPEN for source in work.sources)
        if group and size + own > bytes_per_task:
            yield tuple(group)
            group, size = [], 0
        group.append(work)
        size += own
    if group:
        yield tuple(group)


def _cores_of_server(spark: SparkSession) -> int:
    """The cores of the cluster behind a server of Spark Connect: as many as a range has parts."""
    numbers = spark.range(_RANGE).select(functions.spark_partition_id().alias("number"))
    return int(numbers.agg(functions.max("number")).collect()[0][0]) + 1


def _lost(work: Bin, error: BaseException) -> BinOutcome:
    """The outcome of a bin whose job failed, with what Spark says of the last attempt."""
    text = str(error).rpartition("most recent failure: ")[2]
    why = message_line(_STACK.split(text, maxsplit=1)[0], _MOST_PROBLEM)
    problem = f"no executor completed the task: {why or type(error).__name__}"
    return BinOutcome(number=work.number, failure="failed", problem=problem, retryable=True)
