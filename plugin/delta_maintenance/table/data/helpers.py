"""Idle workers that take over parts of the work on other workers' bins."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from typing import TypeVar

T = TypeVar("T")


class Helpers:
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


class Helped:
    """Runs tasks of one worker, one at a time: in another thread if a worker is idle, otherwise
    immediately in the calling thread.
    """

    def __init__(self, helpers: Helpers | None) -> None:
        self._helpers = helpers
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, task: Callable[[], T]) -> Future[T]:
        """Starts a task and returns its future, which also holds the error of the task. Without an
        idle worker, the task is complete on return.
        """
        helpers = self._helpers
        if helpers is None or not helpers.take():
            done: Future[T] = Future()
            try:
                done.set_result(task())
            except Exception as error:
                done.set_exception(error)
            return done
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1)
        future = self._pool.submit(task)
        future.add_done_callback(lambda _: helpers.add())
        return future

    def close(self) -> None:
        """Waits for the running task, and ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
