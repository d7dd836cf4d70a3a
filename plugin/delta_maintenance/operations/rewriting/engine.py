"""The interface of engines, which rewrite bins, and an engine with threads of this process."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa

from delta_maintenance.clock import NewId, new_id
from delta_maintenance.errors import DeltaMaintenanceError, VerificationError
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.bins import Bin, RewriteSpec, RewrittenBin
from delta_maintenance.table.data.clustering.clustered_bin import ClusteredRewrite, clustered_bin
from delta_maintenance.table.data.parquet.decoded_sizes import MOST_ROW, READING_BYTES
from delta_maintenance.table.data.parquet_input import GROUP_BYTES
from delta_maintenance.table.data.rewrite import rewrite_bin
from delta_maintenance.table.parallel import IdleWorkers

_MOST_WORKERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BinOutcome:
    """The outcome of the work on one bin. Can be pickled."""

    number: int
    done: RewrittenBin | None = None
    """None after a failure, which prevents the commit of the bin."""
    failure: Literal["failed", "not-proved"] | None = None
    problem: str | None = None
    """One clause, if there is a failure."""
    retryable: bool = False
    """Whether the failure may be temporary, such as an unreachable store or a lack of memory."""


class BinEngine(Protocol):
    """Rewrites bins in any order. Each bin that an engine takes has exactly one outcome."""

    def rewrite(
        self, bins: Iterable[Bin], spec: RewriteSpec, *, workers: int | None = None
    ) -> Generator[BinOutcome]:
        """Yields the outcomes of the bins as they are completed. Closing the generator waits for
        the threads; whoever ends early has to do it, because the garbage collector must not wait.

        A bin is taken from the iterable only when a worker is idle, so the iterable can end early.
        `workers` is the number of bins that are rewritten at the same time; by default, the engine
        chooses it.
        """


class LocalEngine:
    """Rewrites bins in threads of this process, each with one bin at a time.

    When no bins are left, idle threads help the others, so a single bin also uses several threads.
    """

    def __init__(self, store: Store, *, new_id: NewId = new_id) -> None:
        self._store = store
        self._new_id = new_id

    def rewrite(
        self, bins: Iterable[Bin], spec: RewriteSpec, *, workers: int | None = None
    ) -> Generator[BinOutcome]:
        """See `BinEngine`."""
        upcoming = iter(bins)
        running: set[Future[BinOutcome]] = set()
        idle_workers, lent = IdleWorkers(), 0
        most = workers or default_workers()
        with ThreadPoolExecutor(most) as pool:
            while True:
                while len(running) < most:
                    work = next(upcoming, None)
                    if work is None:
                        break
                    running.add(pool.submit(self._one, work, spec, idle_workers))
                if not running:
                    return
                free = most - len(running)
                idle_workers.add(free - lent)
                lent = free
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()

    def _one(self, work: Bin, spec: RewriteSpec, idle_workers: IdleWorkers) -> BinOutcome:
        return rewritten(self._store, work, spec, new_id=self._new_id, idle_workers=idle_workers)


def rewritten(
    store: Store,
    work: Bin,
    spec: RewriteSpec,
    *,
    new_id: NewId = new_id,
    idle_workers: IdleWorkers | None = None,
    clustered: ClusteredRewrite = clustered_bin,
) -> BinOutcome:
    """Rewrites one bin. Failures become outcomes, so that they do not affect other bins."""
    try:
        done = rewrite_bin(
            store, work, spec, new_id=new_id, idle_workers=idle_workers, clustered=clustered
        )
    except VerificationError as error:
        return BinOutcome(number=work.number, failure="not-proved", problem=str(error))
    except (DeltaMaintenanceError, pa.ArrowException, OSError, MemoryError) as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        retryable = getattr(error, "retryable", isinstance(error, OSError | MemoryError))
        return BinOutcome(
            number=work.number, failure="failed", problem=problem[:900], retryable=retryable
        )
    return BinOutcome(number=work.number, done=done)


def default_workers() -> int:
    """Returns the number of workers on this machine: one per processor, at most 8."""
    return min(os.cpu_count() or 1, _MOST_WORKERS)


def memory_bound(workers: int, group_bytes: int, sort_bytes: int = 0) -> int:
    """Returns the maximum memory of a rewrite on one machine in bytes, independent of the input.

    Each worker holds a row group to write, its encoded form, the compressed bytes of a row group
    that is read, the pages and rows that are decoded from it, a large row, and the rows that it
    sorts with two copies of them. The bound also includes 200 MiB for Python and Arrow.
    """
    per_worker = 3 * group_bytes + GROUP_BYTES + READING_BYTES + MOST_ROW + 3 * sort_bytes
    return (200 << 20) + workers * per_worker
