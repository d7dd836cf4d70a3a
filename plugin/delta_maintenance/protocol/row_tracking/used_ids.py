"""Finds row IDs that belong to more than one row.

Implements "Row Tracking": stable row IDs are unique within a version. Row IDs are kept as ranges of
consecutive numbers. Files that were written at once have one range, and rewritten files have a few.
A file with many ranges is handled in parts, so that no array grows with the rows of a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    """The smallest row ID that occurs more than once."""

    @classmethod
    def of(cls, row_ids: Numbers) -> IdRanges:
        """Returns the ranges of row IDs in any order."""
        return cls.union(row_ids, row_ids)

    @classmethod
    def joined(cls, parts: Sequence[IdRanges]) -> IdRanges:
        """Returns the ranges of several sets of row IDs."""
        found = cls.union(
            np.concatenate([_NONE, *(part.firsts for part in parts)]),
            np.concatenate([_NONE, *(part.lasts for part in parts)]),
        )
        repeated = [each.repeated for each in (found, *parts) if each.repeated is not None]
        return cls(found.firsts, found.lasts, min(repeated, default=None))

    @classmethod
    def union(cls, firsts: Numbers, lasts: Numbers) -> IdRanges:
        """Returns the ranges of ranges in any order, which may overlap."""
        if len(firsts) > 1 and not bool((firsts[1:] > firsts[:-1]).all()):
            order = np.argsort(firsts, kind="stable")
            firsts, lasts = firsts[order], lasts[order]
            del order
        if not len(firsts):
            return cls(_NONE, _NONE)
        ends = np.maximum.accumulate(lasts)
        overlaps = firsts[1:] <= ends[:-1]
        at = int(overlaps.argmax()) if len(overlaps) else 0
        repeated = int(firsts[at + 1]) if len(overlaps) and overlaps[at] else None
        # Not `ends + 1`, which can be too large.
        begins = np.concatenate([[True], firsts[1:] - 1 > ends[:-1]])
        stops = np.concatenate([begins[1:], [True]])
        return cls(firsts[begins], ends[stops], repeated)

    def __len__(self) -> int:
        return len(self.firsts)

    def in_parts(self) -> IdParts:
        """Returns these row IDs as one part."""
        repeated = np.array([0, self.repeated] if self.repeated is not None else [], np.int64)
        return IdParts(
            self.firsts, self.lasts, np.array([len(self)]), repeated[::2], repeated[1::2]
        )


@dataclass(frozen=True, slots=True)
class IdParts:
    """Some sets of row IDs, one after another. Different sets may have common row IDs."""

    firsts: Numbers
    lasts: Numbers
    """The ranges of all parts; those of a part are disjoint and in ascending order."""
    counts: Numbers
    """The number of ranges of each part."""
    repeating: Numbers
    """The parts in which a row ID occurs more than once, counted from 0 and in ascending order."""
    repeated: Numbers
    """The smallest such row ID of each."""

    def __iter__(self) -> Iterator[IdRanges]:
        known = dict(zip(self.repeating.tolist(), self.repeated.tolist(), strict=True))
        end = 0
        for part, count in enumerate(self.counts.tolist()):
            begin, end = end, end + count
            yield IdRanges(self.firsts[begin:end], self.lasts[begin:end], known.get(part))

    def chosen(self, parts: Numbers) -> IdParts:
        """Returns some parts, given in ascending order, without their repeated row IDs."""
        wanted = np.zeros(len(self.counts), np.bool_)
        wanted[parts] = True
        ranges = np.repeat(wanted, self.counts)
        return IdParts(self.firsts[ranges], self.lasts[ranges], self.counts[parts], _NONE, _NONE)


def overlapping(firsts: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the files whose range of row IDs starts within the range of another file, and the
    file before each of them in the order of the row IDs.

    `firsts` are base row IDs, and `rows` numbers of rows. A file without rows has no row IDs.
    """
    order = np.argsort(firsts, kind="stable")
    order = order[rows[order] > 0]
    ends = np.maximum.accumulate(firsts[order] + rows[order])
    overlap = firsts[order][1:] < ends[:-1]
    return order[1:][overlap], order[:-1][overlap]


class UsedRowIds:
    """All row IDs so far, with 16 bytes for each range. A merge needs twice as much in addition."""

    def __init__(self) -> None:
        self._levels: list[IdRanges] = []

    def __len__(self) -> int:
        """The number of ranges."""
        return sum(map(len, self._levels))

    def add(self, parts: IdParts) -> tuple[Numbers, Numbers]:
        """Adds the row IDs of parts.

        Returns the parts with a row ID that another row has too, in the same part or in an earlier
        one, in ascending order; and the smallest such row ID of each.
        """
        found = [(parts.repeating, parts.repeated)]
        owners = np.repeat(np.arange(len(parts.counts)), parts.counts)
        for level in self._levels:
            rows, ids = _shared(parts, level)
            found.append((owners[rows], ids))
        union = IdRanges.union(parts.firsts, parts.lasts)
        if union.repeated is not None:
            found.append(_shared_among(parts, owners))
        self._push(union)
        return smallest(found)

    def _push(self, union: IdRanges) -> None:
        levels = self._levels
        levels.append(IdRanges(union.firsts, union.lasts))
        while len(levels) > 1 and len(levels[-2]) <= 2 * len(levels[-1]):
            levels[-2:] = [_merged(levels)]


def parts_of(batches: Iterable[Numbers], most: int) -> Iterator[IdRanges]:
    """Yields the row IDs of a file as parts of at most `most` ranges, at least one part."""
    held: list[IdRanges] = []
    count = 0
    for row_ids in batches:
        for first in range(0, len(row_ids), most):
            ranges = IdRanges.of(row_ids[first : first + most])
            if count + len(ranges) > most:
                held = [IdRanges.joined(held)]
                count = len(held[0])
            if count + len(ranges) > most:
                yield held[0]
                held, count = [], 0
            held.append(ranges)
            count += len(ranges)
    yield IdRanges.joined(held)


def _shared(parts: IdParts, level: IdRanges) -> tuple[Numbers, Numbers]:
    """Returns the ranges with a row ID of `level`, and the smallest such row ID of each."""
    if not len(level):
        return _NONE, _NONE
    # Of the ranges that end at or after the beginning of this one, only the first is needed.
    at = np.searchsorted(level.lasts, parts.firsts)
    rows = np.flatnonzero(at < len(level))
    at = at[rows]
    reached = level.firsts[at] <= parts.lasts[rows]
    rows, at = rows[reached], at[reached]
    return rows, np.maximum(parts.firsts[rows], level.firsts[at])


def _shared_among(parts: IdParts, owners: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the parts with a row ID of an earlier one of these parts, and the smallest of each.

    Goes through the parts that have a row ID in common with another one, and no others.
    """
    order = np.argsort(parts.firsts, kind="stable")
    firsts, lasts = parts.firsts[order], parts.lasts[order]
    overlapping = np.zeros(len(order), np.bool_)
    overlapping[1:] = firsts[1:] <= np.maximum.accumulate(lasts)[:-1]
    overlapping[:-1] |= firsts[1:] <= lasts[:-1]
    involved = np.unique(owners[order[overlapping]])
    earlier = UsedRowIds()
    found = []
    for part, ranges in zip(involved, parts.chosen(involved), strict=True):
        none_or_first, ids = earlier.add(ranges.in_parts())
        found.append((none_or_first + part, ids))
    return smallest(found)


def smallest(found: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """Returns the distinct parts or files in ascending order, and the smallest row ID of each."""
    parts = np.concatenate([_NONE, *(parts for parts, _ in found)])
    ids = np.concatenate([_NONE, *(ids for _, ids in found)])
    order = np.lexsort((ids, parts))
    parts, ids = parts[order], ids[order]
    is_first = np.ones(len(parts), np.bool_)
    is_first[1:] = parts[1:] != parts[:-1]
    return parts[is_first], ids[is_first]


def _merged(levels: list[IdRanges]) -> IdRanges:
    """Returns the union of the last two levels, and empties these to need less memory."""
    ranges = [np.concatenate([level.firsts for level in levels[-2:]])]
    ranges.append(np.concatenate([level.lasts for level in levels[-2:]]))
    levels[-2:] = [IdRanges(_NONE, _NONE)] * 2
    union = IdRanges.union(ranges.pop(0), ranges.pop(0))
    return IdRanges(union.firsts, union.lasts)
