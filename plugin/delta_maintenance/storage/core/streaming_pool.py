"""A thread pool for generators."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter, thread_time
from types import TracebackType
from typing import Any


class StreamingPool(ThreadPoolExecutor):
    """A pool for a `with` block inside a generator.

    If the generator is abandoned, leaving the block does not wait for the threads. The garbage
    collector may close the generator at any moment and in any thread, including one that is just
    being started and holds the lock that waiting for a thread needs.
    """

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown(wait=kind is not GeneratorExit, cancel_futures=True)


_LONG_WAIT = 0.0005
"""In seconds: about the time to pass a task to a thread and its result back."""
_LONG_WAITS = 8


class LocalPool(StreamingPool):
    """A pool for tasks on a local file system, which often answers from memory.

    Tasks are done when they are submitted, by the calling thread, until some of them had to wait.
    Threads that never wait only pass the lock of the interpreter to each other.
    """

    _waits = 0

    def submit(self, task: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Runs a task, or passes it to a thread."""
        if self._waits >= _LONG_WAITS:
            return super().submit(task, *args, **named)
        future: Future[Any] = Future()
        started, busy = perf_counter(), thread_time()
        try:
            future.set_result(task(*args, **named))
        except Exception as error:
            future.set_exception(error)
        self._waits += perf_counter() - started - (thread_time() - busy) > _LONG_WAIT
        return future
