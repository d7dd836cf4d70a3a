"""Reads parts of a file ahead, in the calling thread.

Arrow would read them in threads of its own, which can abort the process at its end (decision 0035).
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable
from typing import BinaryIO

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

    def _between(self, start: int, end: int) -> bytes | memoryview:
        """See `FileForArrow`. Bytes that are not in memory are read from the file."""
        part = bisect_right(self._starts, start) - 1
        if part >= 0 and end <= self._starts[part] + len(self._parts[part]):
            first = self._starts[part]
            return self._parts[part][start - first : end - first]
        self._file.seek(start)
        return self._file.read(end - start)
