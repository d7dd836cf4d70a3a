"""Descriptors of the local file system: errors, open directories, and early flushes."""

from __future__ import annotations

import errno
import io
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, cast

from delta_maintenance.errors import StorageAccessError, StorageError
from delta_maintenance.storage.core.streams import FULL, write_error

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def storage_error(error: OSError, path: str) -> StorageError:
    """Returns the error to raise for a failed call on the file or directory of this path."""
    if isinstance(error, PermissionError):
        return StorageAccessError(
            f"no permission: {reason(error)}",
            file=path,
            remedy="grant this user access to the file and its directory",
        )
    if error.errno in FULL:
        return write_error(error, path)
    return StorageError(reason(error), file=path, remedy="repair the file system and run again")


def reason(error: OSError) -> str:
    """The text of the system error, without the path."""
    return error.strerror or type(error).__name__


def open_source(descriptor: int, path: str) -> BinaryIO:
    """Returns a stream that reads an open descriptor and closes it. Its errors are `StorageError`.

    Decoders raise `OSError` for damaged files. Without the conversion, an `OSError` of a failing
    disk would be mistaken for damage.
    """
    return cast(BinaryIO, io.BufferedReader(_Source(descriptor, path)))


class _Source(io.FileIO):
    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor, "rb")
        self._path = path

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise storage_error(error, self._path) from error

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            raise storage_error(error, self._path) from error


_MOST_OPEN = 64
"""Maximum number of open descriptors; a process commonly may have 1024."""


class OpenDirectories:
    """Enters directories below a root, each from its nearest ancestor that is still open.

    Entering a directory from the root takes one step per level, which is quadratic for all
    directories of a chain. Keeps the descriptors of the `_MOST_OPEN` most recently used directories
    open. Thread-safe.

    `step` opens a directory by its name in an open one; it also gets the whole path, for errors.
    """

    def __init__(self, root: str, step: Callable[[int, str, str], int]) -> None:
        self._root = root
        self._step = step
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def enter(self, directory: str) -> Iterator[int]:
        """Opens a directory, by its path below the root, for the duration of the block.

        Each block gets a new descriptor, because two listings through one descriptor would share
        its position. The descriptors that stay open only serve as starting points.
        """
        path, here = self._nearest_above(directory)
        try:
            for segment in directory[len(path) :].strip("/").split("/") if directory else ():
                path = f"{path}/{segment}" if path else segment
                below = self._step(here, segment, path)
                os.close(here)
                here = below
                self._hold(path, here)
            yield here
        finally:
            os.close(here)

    def close(self) -> None:
        """Closes the descriptors. Running blocks keep their own."""
        with self._lock:
            self._closed = True
            while self._open:
                os.close(self._open.popitem()[1])

    def _nearest_above(self, directory: str) -> tuple[str, int]:
        path = directory
        with self._lock:
            while path:
                path = path.rpartition("/")[0]
                if path in self._open:
                    self._open.move_to_end(path)
                    return path, os.dup(self._open[path])
        return "", os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)

    def _hold(self, path: str, descriptor: int) -> None:
        with self._lock:
            if self._closed or path in self._open:
                return
            self._open[path] = os.dup(descriptor)
            if len(self._open) > _MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])


def remove_if_empty(name: str, parent: int) -> bool:
    """Removes a directory by its name in an open one. False if it is not empty or is a file."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


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
