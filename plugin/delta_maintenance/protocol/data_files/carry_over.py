"""Where deletions that somebody made meanwhile lie in files that hold the same rows.

A rewrite keeps the live rows of a source one behind the other, in their order. So a row that was
deleted from the source after it was read is at a known position of the new file: the offset of the
source's rows, and as many further as live rows stood before it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.uint64]
"""Physical positions of rows in a file, counted from 0, ascending."""


def newly_deleted(read: Positions, now: Positions) -> Positions | None:
    """The rows of a source that are deleted now and were live when it was read.

    None where rows that were deleted then are live now: the new file lacks them.
    """
    if not np.isin(read, now).all():
        return None
    return np.setdiff1d(now, read, assume_unique=True)


def carried(rows: Positions, *, read: Positions, offset: int, live: int) -> Positions | None:
    """The positions in the new file of these live rows of a source.

    `read` are the rows of the source that were deleted when it was read, `offset` and `live` say
    where the new file has the others. None where a position would lie beyond them: then the source
    is not what it was said to be.
    """
    before = np.searchsorted(read, rows).astype(np.uint64)
    places = rows - before
    if len(places) and int(places[-1]) >= live:
        return None
    return places + np.uint64(offset)


def all_rows(offset: int, live: int) -> Positions:
    """The positions of all rows of a source in the new file."""
    return np.arange(offset, offset + live, dtype=np.uint64)
