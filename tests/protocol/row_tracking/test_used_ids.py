"""Row IDs as ranges, against sets of numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.row_tracking.used_ids import IdRanges, UsedRowIds

HIGHEST = (1 << 63) - 1
ids = st.one_of(
    st.lists(st.integers(0, 40), max_size=12),
    st.lists(st.integers(HIGHEST - 20, HIGHEST), max_size=12),
    st.builds(
        lambda first, count: list(range(first, first + count)),
        st.integers(0, 60),
        st.integers(0, 15),
    ),
)


def numbers(ranges: IdRanges) -> list[int]:
    pairs = zip(ranges.firsts.tolist(), ranges.lasts.tolist(), strict=True)
    return [number for first, last in pairs for number in range(first, last + 1)]


@given(ids)
def test_ranges_contain_exactly_the_row_ids_they_are_made_of(given: list[int]) -> None:
    found = IdRanges.of(np.array(given, np.int64))
    assert numbers(found) == sorted(set(given))
    assert all(two - 1 > one for one, two in pairwise(numbers_of_ends(found)))
    assert (found.repeated is None) == (len(set(given)) == len(given))
    if found.repeated is not None:
        assert given.count(found.repeated) > 1


def numbers_of_ends(ranges: IdRanges) -> list[int]:
    """The first row IDs of the ranges, which are apart."""
    return [int(first) for first in ranges.firsts]


@pytest.mark.conformance("RT-19")
@given(st.lists(ids, max_size=9))
def test_a_file_is_named_if_and_only_if_an_earlier_row_has_one_of_its_row_ids(
    files: list[list[int]],
) -> None:
    used, seen = UsedRowIds(), set[int]()
    for file in files:
        halves = [file[::2], file[1::2]]
        parts = IdRanges.joined([IdRanges.of(np.array(half, np.int64)) for half in halves])
        repeated = used.add(parts)
        assert (repeated is not None) == (bool(seen & set(file)) or len(set(file)) < len(file))
        if repeated is not None:
            assert repeated in seen or file.count(repeated) > 1
        seen |= set(file)
        assert len(used) <= 2 * len(seen)
