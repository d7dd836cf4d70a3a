"""Files that Arrow reads through Python without copying bytes in memory, and ranges of files.

`ReadAhead` reads in the calling thread. Arrow would read in threads of its own, which can abort the
process at its end (decision 0035).
"""

from __future__ import annotations

import io
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from typing import BinaryIO, overload

import pyarrow as pa

_GAP = 8 << 10
"""Ranges with a smaller gap in bytes are read in one request, as Arrow does."""


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
    ranges_to_read: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if ranges_to_read and start <= ranges_to_read[-1][1] + gap:
            ranges_to_read[-1] = ranges_to_read[-1][0], max(ranges_to_read[-1][1], end)
        else:
            ranges_to_read.append((start, end))
    return ranges_to_read


class ReadAhead(FileForArrow):
    """A file of which some ranges are in memory."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file.seek(0, io.SEEK_END))
        self._file = file
        self._starts: list[int] = []
        self._parts: list[memoryview] = []

    def load(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Reads these ranges into memory, in place of earlier ones. Ranges that are not in the file
        are left out, so that Arrow reports them.
        """
        stored = [
            byte_range for byte_range in ranges if 0 <= byte_range[0] < byte_range[1] <= self._size
        ]
        self._starts, self._parts = [], []
        for start, end in joined_ranges(stored, gap=_GAP):
            self._file.seek(start)
            self._parts.append(memoryview(self._file.read(end - start)))
            self._starts.append(start)

    def held(self, start: int, end: int) -> memoryview | None:
        """Returns the bytes from a position to another one; None if they are not in memory."""
        index = bisect_right(self._starts, start) - 1
        if index < 0 or end > self._starts[index] + len(self._parts[index]):
            return None
        part_start = self._starts[index]
        return self._parts[index][start - part_start : end - part_start]

    def _between(self, start: int, end: int) -> bytes | memoryview:
        """See `FileForArrow`. Bytes that are not in memory are read from the file."""
        held = self.held(start, end)
        if held is not None:
            return held
        self._file.seek(start)
        return self._file.read(end - start)


class FilePart:
    """The bytes of a part of a file, of which at least one piece at a time is in memory."""

    def __init__(self, file: BinaryIO, start: int, end: int, *, piece: int) -> None:
        """`piece` is the number of bytes that are read together."""
        self._file = file
        self._start, self._end = start, end
        self._piece = piece
        self._at, self._held = start, memoryview(b"")

    def __len__(self) -> int:
        return self._end - self._start

    @overload
    def __getitem__(self, at: int, /) -> int: ...
    @overload
    def __getitem__(self, at: slice, /) -> memoryview: ...
    def __getitem__(self, at: int | slice, /) -> int | memoryview:
        if isinstance(at, slice):
            start, end, _ = at.indices(len(self))
            return self._bytes(self._start + start, self._start + end)
        position = at + self._start - self._at
        if not 0 <= position < len(self._held):
            return self._bytes(at + self._start, at + self._start + 1)[0]
        return self._held[position]

    def _bytes(self, start: int, end: int) -> memoryview:
        if not self._at <= start <= end <= self._at + len(self._held):
            self._file.seek(start)
            size = max(0, min(max(end - start, self._piece), self._end - start))
            self._at, self._held = start, memoryview(self._file.read(size))
        return self._held[start - self._at : end - self._at]
