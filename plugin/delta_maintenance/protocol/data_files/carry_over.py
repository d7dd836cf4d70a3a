"""Maps concurrently deleted rows of a source file to their positions in a rewritten file.

A rewrite keeps the live rows of a source contiguous and in their order. A row that was deleted from
the source after it was read therefore has a known position in the new file: the offset of the
source's rows plus the number of live rows before it. Physical row positions are counted from 0.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

Positions = npt.NDArray[np.uint64]
"""Physical row positions in a file, counted from 0, ascending."""
_TOGETHER = 1 << 20
"""The number of adjacent rows of which positions are listed at a time; a list takes 8 MiB."""


def positions_of(rows: BitMap64) -> Positions:
    """Returns all positions; they take 8 bytes each."""
    return np.asarray(rows.to_array(), np.uint64)


def between(rows: BitMap64, first_row: int, count: int) -> Positions:
    """Returns the positions among `count` rows from `first_row` on."""
    return positions_of(rows & BitMap64(range(first_row, first_row + count)))


def newly_deleted(read: BitMap64, now: BitMap64) -> BitMap64 | None:
    """Returns the rows of a source that are deleted now and were live when the source was read.

    None if rows that were deleted then are live now, because the new file lacks these rows.
    """
    return now - read if read.issubset(now) else None


def carried(rows: BitMap64, *, read: BitMap64, offset: int, live: int) -> BitMap64 | None:
    """Returns the positions of these live rows of a source in the new file.

    `read` are the rows of the source that were deleted when it was read. The new file contains the
    other rows from `offset` on, `live` in number. None if a position would be outside that range,
    which means that the arguments do not describe the source.
    """
    if not rows:
        return BitMap64()
    last_row = rows.max()
    if last_row - read.rank(last_row) >= live:
        return None
    if not read:
        return rows.shift(offset)
    positions = BitMap64()
    for start in _windows(rows):
        window_rows, gone = between(rows, start, _TOGETHER), between(read, start, _TOGETHER)
        before = read.rank(start) - (start in read) + np.searchsorted(gone, window_rows)
        moved = window_rows - before.astype(np.uint64) + np.uint64(offset)
        positions |= BitMap64(array("Q", moved.tobytes()))
    return positions


def all_rows(offset: int, live: int) -> BitMap64:
    """Returns the positions of all rows of a source in the new file."""
    return BitMap64(range(offset, offset + live))


def _windows(rows: BitMap64) -> Iterator[int]:
    """Yields the first of `_TOGETHER` adjacent rows, until all rows are in one of them."""
    start, last_row = rows.min(), rows.max()
    while True:
        yield start
        if start + _TOGETHER > last_row:
            return
        start = rows.next_set_bit(start + _TOGETHER)
