"""A thread pool for generators."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType


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
