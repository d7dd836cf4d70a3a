"""How many files a reader must open for a value, from the bounds of the files.

Bounds and values are ranks. A file must be read for a point if the point is within its bounds in
every column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from delta_maintenance.protocol.clustering.curve import Ranks

_CELLS = 1 << 22
"""The number of comparisons that are held in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """The bounds of files: one row for each file, one column for each clustering column."""

    low: Ranks
    high: Ranks
    rows: npt.NDArray[np.int64]
    """The number of rows of each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """What readers of single points read on average."""

    files: float
    """The number of files."""
    rows: float
    """The number of rows in these files."""


def depth_of(boxes: Boxes, points: Ranks) -> Depth:
    """Returns the averages over the points, which have one column for each clustering column."""
    if not len(points) or not len(boxes.rows):
        return Depth(files=0.0, rows=0.0)
    files = rows = 0.0
    step = max(1, _CELLS // len(boxes.rows))
    for at in range(0, len(points), step):
        part = points[at : at + step]
        inside = np.ones((len(part), len(boxes.rows)), np.bool_)
        for column in range(part.shape[1]):
            value = part[:, column, None]
            inside &= (boxes.low[:, column] <= value) & (value <= boxes.high[:, column])
        files += float(inside.sum())
        rows += float((inside @ boxes.rows.astype(np.float64)).sum())
    return Depth(files=files / len(points), rows=rows / len(points))


def is_better(before: Depth, after: Depth) -> bool:
    """Whether files are clustered better than before, or so that they do not overlap at all."""
    return after.files < before.files or after.rows < before.rows or after.files <= 1.0
