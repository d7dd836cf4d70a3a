"""The Spark engine of `optimize`, `cluster` and `purge`: executors rewrite bins like the local one.

A job has one task, which rewrites one bin, or several small ones one after another. As many jobs
run at the same time as the cluster has cores, and a few more wait, so that finished bins are
committed while others are rewritten. Only large bins of `cluster` have several tasks and a shuffle;
see `spark.clustering`. No row but a sample of these reaches the driver, which holds the bins of the
running jobs and the outcomes of the finished ones. Only DataFrame operations are used, so that the
engine also runs on Spark Connect.

Spark's own readers and writers are not used: settings such as `spark.sql.files.ignoreCorruptFiles`
change nothing, and a damaged file is refused as in the local engine.

A task that runs twice, because an executor was lost or a task was slow, writes new files under new
names. Only the names in the result of a job are committed; other files are ordinary unreferenced
files. If a job fails after all attempts of Spark, each of its bins is retried once in a job of its
own, so that a bin that crashes its executor affects no other bin.
"""

from __future__ import annotations

import pickle
import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import BoundedSemaphore

import pyarrow as pa
from pyspark.sql import SparkSession, functions

from delta_maintenance import clock
from delta_maintenance.clock import NewId
from delta_maintenance.errors import message_line
from delta_maintenance.operations.rewriting.engine import BinOutcome, rewritten
from delta_maintenance.spark.clustering import SparkSorting
from delta_maintenance.spark.log_shares import TableAddress
from delta_maintenance.spark.session import (
    JobSession,
    SparkEngine,
    add_tag,
    cancel_tagged,
    for_thread,
    is_connected,
)
from delta_maintenance.submission.job_report import remedy_without_pandas
from delta_maintenance.table.data.bins import Bin, RewriteSpec

SCHEMA = "number long, outcome binary"
"""The schema of the result of a bin: its number, and a pickled `BinOutcome`."""

_BYTES_PER_TASK = 32 << 20
"""The maximum size of several bins in one task: about 1 s of work, while a job costs 0.1 s."""
_BYTES_TO_OPEN = 256 << 10
"""The cost of opening a file, as the number of bytes that could be rewritten in that time."""
_MOST_TASKS = 512
"""The maximum number of concurrent jobs; each has a thread in the driver."""
_SORTED_BYTES = 1 << 30
"""The size from which a bin is sorted by several tasks. One task sorts it in some minutes."""
_MOST_SORTED = 2
"""The number of such bins at the same time: tasks of one can run while the other waits for its
last ones, and the rows of few are on the disks of executors.
"""
_MOST_FAILURES = 8
"""The number of consecutive failed jobs after which no bin is started, because the cluster does not
work.
"""
_MOST_PROBLEM = 400
_RANGE = 1 << 16
"""A number that exceeds the number of cores of any cluster."""
_STACK = re.compile(r"\n\s*(?:Driver stacktrace:|JVM stacktrace:|at )")
"""The start of the stack trace of the JVM in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinTask:
    """The inputs of a task; they are sent to executors."""

    address: TableAddress
    spec: RewriteSpec
    bins: tuple[Bin, ...]
    new_id: NewId
    """Called on the executor, so that each attempt of a task writes files with new names."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rewrites the bins and yields a row of `SCHEMA` for each."""
        for _ in batches:
            # Spark waits until the only row of the input is read.
            pass
        with self.address.store() as store:
            for source_bin in self.bins:
                outcome = rewritten(store, source_bin, self.spec, new_id=self.new_id)
                yield pa.RecordBatch.from_arrays(
                    [pa.array([source_bin.number]), pa.array([pickle.dumps(outcome)], pa.binary())],
                    names=["number", "outcome"],
                )


class SparkRewriting(SparkEngine):
    """A `BinEngine` on a Spark session."""

    def __init__(
        self,
        job: JobSession,
        *,
        bytes_per_task: int = _BYTES_PER_TASK,
        sorted_bytes: int = _SORTED_BYTES,
    ) -> None:
        super().__init__(job)
        self._bytes_per_task = bytes_per_task
        self._sorted_bytes = sorted_bytes

    def rewrite(
        self, bins: Iterable[Bin], spec: RewriteSpec, *, workers: int | None = None
    ) -> Generator[BinOutcome]:
        """See `BinEngine`. Bins that wait for a core count as started."""
        task = BinTask(address=self._address, spec=spec, bins=(), new_id=self._new_id)
        upcoming = groups(bins, self._bytes_per_task)
        return _Run(self._spark, task, upcoming, self._sorted_bytes).outcomes(workers)


class _Run:
    """The jobs of one call of the engine."""

    def __init__(
        self,
        spark: SparkSession,
        task: BinTask,
        upcoming: Iterator[tuple[Bin, ...]],
        sorted_bytes: int,
    ) -> None:
        self._spark = spark
        self._task = task
        self._upcoming = upcoming
        self._sorted_bytes = sorted_bytes
        self._sorting = BoundedSemaphore(_MOST_SORTED)
        self._tag = f"delta-maintenance-{clock.new_id()}"
        self._again: deque[tuple[Bin, BinOutcome]] = deque()
        """Bins that failed once, with the outcome of that failure."""
        self._failures = 0
        self._ended = False
        self._cores = _cores_of_server(spark) if is_connected(spark) else 1

    def outcomes(self, workers: int | None) -> Generator[BinOutcome]:
        """Yields the outcomes of all bins. Closing the generator early cancels the running jobs."""
        running: dict[Future[list[BinOutcome]], tuple[tuple[Bin, ...], bool]] = {}
        with ThreadPoolExecutor(_MOST_TASKS) as pool:
            try:
                while True:
                    max_jobs = min(workers or self._jobs_at_once(), _MOST_TASKS)
                    while len(running) < max_jobs:
                        bins, is_second = self._next()
                        if not bins:
                            break
                        running[self._submit(pool, bins, is_second)] = bins, is_second
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield from self._end_job(future, *running.pop(future))
            finally:
                self._ended = True
                if running:
                    with suppress(Exception):
                        cancel_tagged(self._spark, self._tag)

    def _jobs_at_once(self) -> int:
        """Returns the number of cores of the cluster plus a margin, so that no core is idle."""
        if not is_connected(self._spark):
            # The number of executors can change. After the end of the session, it does not matter.
            with suppress(Exception):
                self._cores = self._spark.sparkContext.defaultParallelism
        return self._cores + max(1, self._cores // 4)

    def _next(self) -> tuple[tuple[Bin, ...], bool]:
        """Returns the bins of the next job, if any, and whether they are retried."""
        if self._again:
            return (self._again.popleft()[0],), True
        if self._failures >= _MOST_FAILURES:
            return (), False
        return next(self._upcoming, ()), False

    def _submit(
        self, pool: ThreadPoolExecutor, bins: tuple[Bin, ...], is_second: bool
    ) -> Future[list[BinOutcome]]:
        try:
            # The thread of the job inherits the job group and the scheduler pool of this thread.
            job = for_thread(self._spark, self._job)
        except Exception as error:
            # The session has ended.
            failed = Future[list[BinOutcome]]()
            failed.set_exception(error)
            return failed
        return pool.submit(job, bins, is_second)

    def _job(self, bins: tuple[Bin, ...], is_second: bool) -> list[BinOutcome]:
        add_tag(self._spark, self._tag)
        if len(bins) == 1 and not is_second and self._is_sorted_by_many(bins[0]):
            return self._sort_bin(bins[0])
        if self._ended:
            return []
        task = replace(self._task, bins=bins)
        rows = self._spark.range(0, 1, 1, 1).mapInArrow(task.run, SCHEMA).collect()
        return [pickle.loads(row.outcome) for row in rows]

    def _is_sorted_by_many(self, source_bin: Bin) -> bool:
        size = sum(source.size for source in source_bin.sources)
        return self._task.spec.clustering is not None and size >= self._sorted_bytes

    def _sort_bin(self, source_bin: Bin) -> list[BinOutcome]:
        """Rewrites a bin of which Spark sorts the rows. After a failure, one task rewrites it."""
        task, address = self._task, self._task.address
        clustered = SparkSorting(self._spark, address)
        with self._sorting, address.store() as store:
            if self._ended:
                return []
            outcome = rewritten(
                store, source_bin, task.spec, new_id=task.new_id, clustered=clustered
            )
            return [replace(outcome, retryable=outcome.failure is not None)]

    def _end_job(
        self, future: Future[list[BinOutcome]], bins: tuple[Bin, ...], is_second: bool
    ) -> Iterator[BinOutcome]:
        """Yields the outcomes of a job, except those of the bins that will be retried."""
        error = future.exception()
        if error is None:
            self._failures = 0
            outcomes = future.result()
        else:
            self._failures += 1
            outcomes = [_lost(source_bin, error) for source_bin in bins]
        by_number = {source_bin.number: source_bin for source_bin in bins}
        for outcome in outcomes:
            if outcome.retryable and not is_second:
                self._again.append((by_number[outcome.number], outcome))
            else:
                yield outcome
        if self._failures >= _MOST_FAILURES:
            yield from (outcome for _, outcome in self._again)
            self._again.clear()


def groups(bins: Iterable[Bin], bytes_per_task: int) -> Iterator[tuple[Bin, ...]]:
    """Yields groups of adjacent bins with at most `bytes_per_task` bytes.

    A larger bin is a group of its own. Bins are consumed lazily, at most one bin ahead: the first
    one that does not fit in the group.
    """
    group: list[Bin] = []
    size = 0
    for source_bin in bins:
        cost = sum(source.size + _BYTES_TO_OPEN for source in source_bin.sources)
        if group and size + cost > bytes_per_task:
            yield tuple(group)
            group, size = [], 0
        group.append(source_bin)
        size += cost
    if group:
        yield tuple(group)


def _cores_of_server(spark: SparkSession) -> int:
    """Returns the number of cores behind a Spark Connect server: the partitions of a range."""
    numbers = spark.range(_RANGE).select(functions.spark_partition_id().alias("number"))
    return int(numbers.agg(functions.max("number")).collect()[0][0]) + 1


def _lost(source_bin: Bin, error: BaseException) -> BinOutcome:
    """Returns the outcome of a bin whose job failed, with Spark's message on the last attempt."""
    text = str(error).rpartition("most recent failure: ")[2]
    message = message_line(_STACK.split(text, maxsplit=1)[0], _MOST_PROBLEM)
    problem = f"no executor completed the task: {message or type(error).__name__}"
    remedy = remedy_without_pandas(str(error))
    problem = problem if remedy is None else f"{problem}; {remedy}"
    return BinOutcome(number=source_bin.number, failure="failed", problem=problem, retryable=True)
