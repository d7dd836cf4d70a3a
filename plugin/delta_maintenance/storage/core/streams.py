"""Streams of the stores: random access by range requests, and writing to descriptors."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

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
