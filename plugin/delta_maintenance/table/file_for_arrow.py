"""Files that Arrow reads through Python without copying bytes in memory, and ranges of files."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterable
from typing import BinaryIO

import pyarrow as pa


class FileForArrow(io.RawIOBase):
    """A readable file for Arrow. Subclasses return its bytes by their positions."""

    def __init__(self, size: int) -> None:
        """`size` is that of the file in bytes."""
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, self._size)[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes | memoryview:
        end = self._size if size < 0 else min(self._at + size, self._size)
        data = self._between(self._at, end) if end > self._at else b""
        self._at += len(data)
        return data

    @abstractmethod
    def _between(self, start: int, end: int) -> bytes | memoryview:
        """Returns the bytes from a position to another one, which is in the file."""


def read_range(file: BinaryIO, start: int, size: int) -> bytes:
    """Reads `size` bytes of a file. `pa.ArrowInvalid`, before memory is taken, if the file does not
    contain them: positions in footers and tags may be any numbers.
    """
    end = file.seek(0, io.SEEK_END)
    if not 0 <= start <= start + size <= end:
        raise pa.ArrowInvalid(f"the file of {end} bytes has no {size} bytes at {start}")
    file.seek(start)
    data = file.read(size)
    if len(data) != size:
        raise pa.ArrowInvalid(f"the file ends {size - len(data)} bytes too early")
    return data


def joined_ranges(ranges: Iterable[tuple[int, int]], *, gap: int) -> list[tuple[int, int]]:
    """Joins ranges of positions that overlap or have at most `gap` bytes between them.

    The result is in ascending order. Reading a gap takes less time than another request.
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1] + gap:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found
