"""Reads of a log from which another process may delete files at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from delta_maintenance.errors import StorageError

T = TypeVar("T")

_ATTEMPTS = 3


def relisting(read: Callable[[], T]) -> T:
    """The result of `read`, which lists the log and then reads files of the listing.

    A clean-up may delete a file in between; then `read` raises `FileNotFoundError` and is called
    again, with the files that are left. `StorageError` where that happens again and again.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return read()
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS - 1:
                raise StorageError(
                    "a file of the log is gone since it was listed",
                    file=error.filename,
                    remedy="run again",
                ) from None
    raise AssertionError("the last attempt returns or raises")
