"""Starts storing a large file on the disk while it is still being written.

Otherwise, the disk is idle while the file is written, and the processor while it is synced.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

_STEP = 16 << 20
"""The bytes between two flushes. Smaller files are only synced at their end."""


class EarlyFlush:
    """Flushes one file in a thread of its own, which begins with the first large write."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unflushed = 0
        self._pool: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def written(self, size: int) -> None:
        """Notes that `size` more bytes were written. Raises `OSError` of an earlier flush."""
        self._unflushed += size
        if self._unflushed < _STEP or not (self._running is None or self._running.done()):
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "early-flush")
        self._wait()
        self._running = self._pool.submit(_flush, self._descriptor)
        self._unflushed = 0

    def finish(self) -> None:
        """Waits for the thread. Raises `OSError` if a flush failed.

        The system reports a failure only once, so a sync that follows would succeed.
        """
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
            self._wait()

    def _wait(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.result()


def _flush(descriptor: int) -> None:
    # Some systems have no fdatasync.
    getattr(os, "fdatasync", os.fsync)(descriptor)
