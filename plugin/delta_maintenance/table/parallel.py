"""Parallel work: on the items of a stream, with results in order, and by idle workers on bins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from threading import Semaphore
from typing import TypeVar

from delta_maintenance.storage.core.streams import StreamingPool

Item = TypeVar("Item")
Made = TypeVar("Made")
_THREADS = 2

T = TypeVar("T")


def in_parallel(
    work: Callable[[Item], Made], items: Iterable[Item], *, threads: int = _THREADS
) -> Iterator[Made]:
    """Yields the results of `work` in order; the next two items are processed in advance.

    Two are enough, because Arrow and NumPy use the other cores within an item, and items are large.
    Callers with much Python code of their own should pass fewer `threads`, because of the GIL.
    """
    with StreamingPool(threads) as pool:
        under_way: deque[Future[Made]] = deque()
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def in_advance(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yields the items; a thread produces the next one meanwhile.

    For producers that leave the GIL to others most of the time.
    """
    with StreamingPool(1) as pool:
        following = pool.submit(_next, items)
        while found := following.result():
            following = pool.submit(_next, items)
            yield from found


class IdleWorkers:
    """Counts the idle workers of one run, initially none. Thread-safe."""

    def __init__(self) -> None:
        self._free = Semaphore(0)

    def add(self, count: int = 1) -> None:
        """Adds idle workers."""
        if count:
            self._free.release(count)

    def take(self) -> bool:
        """Takes one idle worker, without waiting; False if there is none. `add` returns it."""
        return self._free.acquire(blocking=False)


class OverlappedTasks:
    """Runs tasks of one worker, one at a time: in another thread if a worker is idle, otherwise
    immediately in the calling thread.
    """

    def __init__(self, idle_workers: IdleWorkers | None) -> None:
        self._idle_workers = idle_workers
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, task: Callable[[], T]) -> Future[T]:
        """Starts a task and returns its future, which also holds the error of the task. Without an
        idle worker, the task is complete on return.
        """
        future = self.begin_if_idle(task)
        if future is None:
            future = Future()
            try:
                future.set_result(task())
            except Exception as error:
                future.set_exception(error)
        return future

    def begin_if_idle(self, task: Callable[[], T]) -> Future[T] | None:
        """Starts a task if a worker is idle; otherwise returns None."""
        idle_workers = self._idle_workers
        if idle_workers is None or not idle_workers.take():
            return None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1)
        future = self._pool.submit(task)
        future.add_done_callback(lambda _: idle_workers.add())
        return future

    def close(self) -> None:
        """Waits for the running task, and ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _next(items: Iterator[Item]) -> list[Item]:
    """Returns the next item in a list, which is empty at the end."""
    return list(islice(items, 1))
