"""A thread pool for the items of a stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType


class StreamingPool(ThreadPoolExecutor):
    """A pool for the `with` block of a generator.

    Left by an abandoned generator, the block does not wait for its threads: the garbage collector
    may close that generator at any moment and in any thread, even in one that is being started and
    holds the lock that waiting for a thread needs.
    """

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown(wait=kind is not GeneratorExit, cancel_futures=True)
