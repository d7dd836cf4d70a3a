"""Versions that are missing among others, as ranges.

One stray name can open a gap of any width, so that no gap is ever gone through version by version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise


def version_gaps(versions: Iterable[int], *, first: int = 0) -> list[tuple[int, int]]:
    """The first and the last version of each gap between versions from `first` on, ascending."""
    known = sorted({version for version in versions if version >= first})
    return [(low + 1, high - 1) for low, high in pairwise(known) if high > low + 1]


def start_of_run(versions: Collection[int], last: int) -> int:
    """The oldest version from which on every one is there up to `last`; `last` + 1 for none."""
    start = last + 1
    for version in sorted((version for version in versions if version <= last), reverse=True):
        if version != start - 1:
            break
        start = version
    return start
