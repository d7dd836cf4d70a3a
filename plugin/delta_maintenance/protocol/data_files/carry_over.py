"""Maps concurrently deleted rows of a source file to their positions in a rewritten file.

A rewrite keeps the live rows of a source contiguous and in their order. A row that was deleted from
the source after it was read therefore has a known position in the new file: the offset of the
source's rows plus the number of live rows before it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.uint64]
"""Physical row positions in a file, counted from 0, ascending."""


def newly_deleted(read: Positions, now: Positions) -> Positions | None:
    """Returns the rows of a source that are deleted now and were live when the source was read.

    None if rows that were deleted then are live now, because the new file lacks these rows.
    """
    if not np.isin(read, now).all():
        return None
    return np.setdiff1d(now, read, assume_unique=True)


def carried(rows: Positions, *, read: Positions, offset: int, live: int) -> Positions | None:
    """Returns the positions of these live rows of a source in the new file.

    `read` are the rows of the source that were deleted when it was read. The new file contains the
    other rows from `offset` on, `live` in number. None if a position would be outside that range,
    which means that the arguments do not describe the source.
    """
    before = np.searchsorted(read, rows).astype(np.uint64)
    places = rows - before
    if len(places) and int(places[-1]) >= live:
        return None
    return places + np.uint64(offset)


def all_rows(offset: int, live: int) -> Positions:
    """Returns the positions of all rows of a source in the new file."""
    return np.arange(offset, offset + live, dtype=np.uint64)
