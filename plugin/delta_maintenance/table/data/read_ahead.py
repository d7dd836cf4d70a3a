"""Reads parts of a file ahead, in the calling thread.

Arrow would read them in threads of its own, which can abort the process at its end (decision 0035).
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable
from typing import BinaryIO, overload

from delta_maintenance.table.file_for_arrow import FileForArrow, joined_ranges

_GAP = 8 << 10
"""Ranges with a smaller gap in bytes are read in one request, as Arrow does."""


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
        stored = [each for each in ranges if 0 <= each[0] < each[1] <= self._size]
        self._starts, self._parts = [], []
        for start, end in joined_ranges(stored, gap=_GAP):
            self._file.seek(start)
            self._parts.append(memoryview(self._file.read(end - start)))
            self._starts.append(start)

    def held(self, start: int, end: int) -> memoryview | None:
        """Returns the bytes from a position to another one; None if they are not in memory."""
        part = bisect_right(self._starts, start) - 1
        if part < 0 or end > self._starts[part] + len(self._parts[part]):
            return None
        first = self._starts[part]
        return self._parts[part][start - first : end - first]

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
        place = at + self._start - self._at
        if not 0 <= place < len(self._held):
            return self._bytes(at + self._start, at + self._start + 1)[0]
        return self._held[place]

    def _bytes(self, start: int, end: int) -> memoryview:
        if not self._at <= start <= end <= self._at + len(self._held):
            self._file.seek(start)
            size = max(0, min(max(end - start, self._piece), self._end - start))
            self._at, self._held = start, memoryview(self._file.read(size))
        return self._held[start - self._at : end - self._at]
