"""Overlap and depth of files by the bounds of a column: one sort, then sums over the sorted ends.

The overlap of a file is the number of other files whose range has a value in common with its own.
Its depth is the greatest number of files, itself included, whose ranges share one value of its
range: 1 if a reader of any of its values opens no other file. Both are counted inside a partition,
because no clustering moves rows between partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delta_maintenance.protocol.layout.bounds import Keys, Mask, Numbers, by_number

_EXACT = 16
"""Depths up to this one have buckets of their own; the others are rounded up to powers of two."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """For each file."""

    overlap: Numbers
    depth: Numbers


def overlaps(least: Keys, greatest: Keys, partition: Numbers | None = None) -> Overlap:
    """Returns overlap and depth of each file, from the order keys of its bounds."""
    count = len(least)
    if not count:
        return Overlap(np.zeros(0, np.int64), np.zeros(0, np.int64))
    order = _ordered(least, np.maximum(least, greatest))
    if partition is not None and partition.any():
        # A stable sort keeps the order in each partition.
        order = order[by_number(np.concatenate([partition, partition])[order])]
    is_lower = order < count
    opened = np.cumsum(is_lower)
    closed_before = np.arange(2 * count) - opened + is_lower
    at = np.empty(2 * count, np.int64)
    at[order] = np.arange(2 * count)
    first, last = at[:count], at[count:]
    overlap = opened[last] - closed_before[first] - 1
    profile = (opened - closed_before)[is_lower]
    return Overlap(overlap, _greatest_between(profile, opened[first] - 1, opened[last] - 1))


def overlap_elsewhere(least: Keys, greatest: Keys, partition: Numbers, unit: Numbers) -> Mask:
    """Returns which files have a value in common with a file of another unit of their partition.

    The files of a unit are in one partition.
    """
    every = overlaps(least, greatest, partition).overlap
    found: Mask = every > overlaps(least, greatest, unit).overlap
    return found


def histogram(depth: Numbers) -> dict[int, int]:
    """Returns the number of files by depth: 1, 2, 3 … 16, then up to 32, 64 …"""
    up = np.where(depth <= _EXACT, depth, 1 << np.ceil(np.log2(np.maximum(depth, 1))).astype(int))
    found, counts = np.unique(up, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _ordered(least: Keys, greatest: Keys) -> Numbers:
    """Sorts all ends. Where they are equal, the lower ends come first, because a range includes
    both of its ends.
    """
    lower, upper = np.argsort(least), np.argsort(greatest)
    # Twice as fast as a stable sort of all ends.
    first, last = least[lower], greatest[upper]
    found = np.empty(2 * len(least), np.int64)
    at = np.arange(len(least))
    found[at + np.searchsorted(last, first, side="left")] = lower
    found[at + np.searchsorted(first, last, side="right")] = len(least) + upper
    return found


def _greatest_between(values: Numbers, first: Numbers, last: Numbers) -> Numbers:
    """Returns the greatest of `values[first[i] : last[i] + 1]` for each `i`."""
    found = np.zeros(len(first), np.int64)
    level = np.log2(last - first + 1).astype(np.int64)
    # The greatest of each run of 1, 2, 4 … values; two runs cover every range.
    runs, width = values, 1
    for power in range(int(level.max()) + 1):
        rows = np.flatnonzero(level == power)
        found[rows] = np.maximum(runs[first[rows]], runs[last[rows] - width + 1])
        runs = np.maximum(runs[:-width], runs[width:])
        width *= 2
    return found
