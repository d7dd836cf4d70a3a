"""Finds row IDs that belong to more than one row.

Implements "Row Tracking": stable row IDs are unique within a version. Row IDs are kept as ranges of
consecutive numbers. Files that were written at once have one range, and rewritten files have a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class IdRanges:
    """Disjoint ranges in ascending order; adjacent ones are joined."""

    firsts: Numbers
    lasts: Numbers
    """The last row ID of each range, which belongs to it."""
    repeated: int | None = None
    """A row ID that occurs more than once."""

    @classmethod
    def of(cls, row_ids: Numbers) -> IdRanges:
        """Returns the ranges of row IDs in any order."""
        return cls._joined(row_ids, row_ids)

    @classmethod
    def joined(cls, parts: Sequence[IdRanges]) -> IdRanges:
        """Returns the ranges of several sets of row IDs."""
        firsts = np.concatenate([_NONE, *(part.firsts for part in parts)])
        lasts = np.concatenate([_NONE, *(part.lasts for part in parts)])
        found = cls._joined(firsts, lasts)
        known = [part.repeated for part in parts if part.repeated is not None]
        return cls(found.firsts, found.lasts, known[0]) if known else found

    @classmethod
    def _joined(cls, firsts: Numbers, lasts: Numbers) -> IdRanges:
        if len(firsts) > 1 and not bool((firsts[1:] > firsts[:-1]).all()):
            order = np.argsort(firsts, kind="stable")
            firsts, lasts = firsts[order], lasts[order]
        if not len(firsts):
            return cls(_NONE, _NONE)
        ends = np.maximum.accumulate(lasts)
        overlaps = np.flatnonzero(firsts[1:] <= ends[:-1])
        repeated = int(firsts[overlaps[0] + 1]) if len(overlaps) else None
        # Not `ends + 1`, which can be too large.
        begins = np.concatenate([[True], firsts[1:] - 1 > ends[:-1]])
        at = np.flatnonzero(begins)
        stops = np.concatenate([at[1:] - 1, [len(ends) - 1]])
        return cls(firsts[at], ends[stops], repeated)

    def __len__(self) -> int:
        return len(self.firsts)

    def shared_with(self, other: IdRanges) -> int | None:
        """Returns a row ID that is in both, or None."""
        if not len(self) or not len(other):
            return None
        # Of the ranges that begin before the end of this one, only the last can reach it.
        at = np.searchsorted(other.firsts, self.lasts, side="right") - 1
        shared = np.flatnonzero((at >= 0) & (other.lasts[at] >= self.firsts))
        if not len(shared):
            return None
        first = shared[0]
        return int(max(self.firsts[first], other.firsts[at[first]]))


class UsedRowIds:
    """The row IDs of all files so far. Needs 16 bytes for each range, and twice that at times."""

    def __init__(self) -> None:
        self._levels: list[IdRanges] = []

    def __len__(self) -> int:
        """The number of ranges."""
        return sum(map(len, self._levels))

    def add(self, file: IdRanges) -> int | None:
        """Adds the row IDs of a file; returns one that another row has too, or None."""
        found = file.repeated
        for level in self._levels:
            shared = file.shared_with(level)
            found = shared if found is None else found
        self._levels.append(IdRanges(file.firsts, file.lasts))
        while len(self._levels) > 1 and len(self._levels[-2]) <= 2 * len(self._levels[-1]):
            last = self._levels.pop()
            joined = IdRanges.joined([self._levels.pop(), last])
            self._levels.append(IdRanges(joined.firsts, joined.lasts))
        return found
