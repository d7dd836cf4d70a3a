"""Directories that stay open during bulk work, to shorten the path to directories below them."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

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
    def entered(self, directory: str) -> Iterator[int]:
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
