"""Write streams over file descriptors that the store owns."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

from delta_maintenance.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


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
            full = error.errno in _FULL
            raise StorageError(
                f"cannot write: {error.strerror}",
                file=self._path,
                remedy=f"{'make room' if full else 'repair the file system'} and run again",
            ) from error
        return size


_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
