"""Converts errors of the operating system to errors of this library that name the file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, cast

from delta_maintenance.errors import StorageAccessError, StorageError

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
