"""Missing versions in a set of versions, as ranges.

A single misnamed file can create a huge gap, so gaps are never enumerated version by version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise


def version_gaps(versions: Iterable[int], *, first: int = 0) -> list[tuple[int, int]]:
    """Returns the first and the last version of each gap from version `first` on, ascending."""
    known = sorted({version for version in versions if version >= first})
    return [(low + 1, high - 1) for low, high in pairwise(known) if high > low + 1]


def start_of_run(versions: Collection[int], last: int) -> int:
    """Returns the first version of the contiguous run that ends with `last`; `last` + 1 if `last`
    is missing.
    """
    start = last + 1
    for version in sorted((version for version in versions if version <= last), reverse=True):
        if version != start - 1:
            break
        start = version
    return start
