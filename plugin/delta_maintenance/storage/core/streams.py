"""Streams of the stores, random access by range requests, and thread pools for generators."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from delta_maintenance.errors import FullStoreError, StorageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


def open_ranges(fetch: Callable[[int, int], bytes], size: int) -> BinaryIO:
    """Returns a readable, seekable file over `fetch(first, count)`, which returns exactly `count`
    bytes.

    A Parquet reader reads the footer and then whole, adjacent column chunks. A read larger than the
    buffer becomes one request of its size; smaller reads share the buffer. A larger cache would
    fetch columns that are not needed.
    """
    return cast(BinaryIO, io.BufferedReader(_Ranges(fetch, size), buffer_size=_BUFFER_SIZE))


class _Ranges(io.RawIOBase):
    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a position before the beginning of the file")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        count = min(len(view), self._size - self._position)
        if count <= 0:
            return 0
        view[:count] = self._fetch(self._position, count)
        self._position += count
        return count

    def readall(self) -> bytes:
        """Reads the rest of the file with one request; the base class reads 8 KiB at a time."""
        count = max(0, self._size - self._position)
        data = self._fetch(self._position, count) if count else b""
        self._position += count
        return data


_BUFFER_SIZE = 1 << 20


def open_sink(
    descriptor: int, path: str, *, written: Callable[[int], None] = lambda _: None
) -> BinaryIO:
    """Returns a stream that writes to an open descriptor and can read the written bytes.

    `written` is called with the size of each write. Closing the stream leaves the descriptor open.
    Its errors are `StorageError` and name `path`.
    """
    return cast(BinaryIO, io.BufferedRandom(_Sink(descriptor, path, written)))


class _Sink(io.FileIO):
    """Reports a full or failing disk as an error of the store, also while the caller writes."""

    def __init__(self, descriptor: int, path: str, written: Callable[[int], None]) -> None:
        super().__init__(descriptor, "r+b", closefd=False)
        self._path = path
        self._written = written

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            size = super().write(data)
            self._written(size)
        except OSError as error:
            raise write_error(error, self._path) from error
        return size


FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def write_error(error: OSError, path: str) -> StorageError:
    """Returns the error to raise if a file of this path cannot be written."""
    problem = f"cannot write: {error.strerror}"
    if error.errno in FULL:
        return FullStoreError(problem, file=path, remedy="make room and run again")
    return StorageError(problem, file=path, remedy="repair the file system and run again")


class StreamingPool(ThreadPoolExecutor):
    """A pool for a `with` block inside a generator.

    If the generator is abandoned, leaving the block does not wait for the threads. The garbage
    collector may close the generator at any moment and in any thread, including one that is just
    being started and holds the lock that waiting for a thread needs.
    """

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
