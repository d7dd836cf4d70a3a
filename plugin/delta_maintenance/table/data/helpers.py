"""Workers that have no bin of their own any more, and take over parts of the work on others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from typing import TypeVar

T = TypeVar("T")


class Helpers:
    """How many workers are free to help. Shared by the threads of one run; none at first."""

    def __init__(self) -> None:
        self._free = Semaphore(0)

    def add(self, count: int = 1) -> None:
        """So many more workers are free."""
        if count:
            self._free.release(count)

    def take(self) -> bool:
        """Takes one, to be given back by `add`. Does not wait; False if none is free."""
        return self._free.acquire(blocking=False)


class Helped:
    """Tasks of one worker that a helper takes over, one at a time, if there is one. Otherwise the
    worker itself does them at once."""

    def __init__(self, helpers: Helpers | None) -> None:
        self._helpers = helpers
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, task: Callable[[], T]) -> Future[T]:
        """Begins a task, which is complete already if there is no helper. Its result has the error
        of the task, if there is one."""
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
        """Waits for the task under way, and ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
