"""Reads of a log from which another process may delete files concurrently."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from delta_maintenance.errors import DeltaMaintenanceError, StorageError

T = TypeVar("T")

_ATTEMPTS = 3


def _run_again(error: FileNotFoundError) -> DeltaMaintenanceError:
    return StorageError(
        "a file of the log was deleted after it was listed", file=error.filename, remedy="run again"
    )


def relisting(
    read: Callable[[], T],
    *,
    vanished: Callable[[FileNotFoundError], DeltaMaintenanceError] = _run_again,
) -> T:
    """Returns the result of `read`, which lists the log and then reads files of the listing.

    A clean-up may delete a file in between; then `read` raises `FileNotFoundError` and is called
    again, with the remaining files. If that happens repeatedly, the error that `vanished` makes of
    the last one is raised, by default a `StorageError`.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return read()
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS - 1:
                raise vanished(error) from error
    raise AssertionError("the last attempt returns or raises")
