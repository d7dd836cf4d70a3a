"""Write streams whose file descriptor stays under the control of the store."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, cast

from delta_maintenance.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def open_sink(descriptor: int) -> BinaryIO:
    """A stream that writes through an open descriptor and can read the written bytes.

    Closing it leaves the descriptor open.
    """
    return cast(BinaryIO, io.BufferedRandom(_Sink(descriptor, "r+b", closefd=False)))


class _Sink(io.FileIO):
    """A full disk is the store's failure, also in the middle of the caller's writing."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise StorageError(
                f"cannot write: {error.strerror}", remedy="make room and run again"
            ) from error
