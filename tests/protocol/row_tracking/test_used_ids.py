"""Row IDs as ranges, against sets of numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.row_tracking.row_ids import IdParts, IdRanges, UsedRowIds, parts_of

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


def smallest_repeated(given: list[int]) -> int | None:
    return min((each for each in given if given.count(each) > 1), default=None)


def together(sets: list[IdRanges]) -> IdParts:
    repeated = [(at, each.repeated) for at, each in enumerate(sets) if each.repeated is not None]
    return IdParts(
        firsts=np.concatenate([np.zeros(0, np.int64), *(each.firsts for each in sets)]),
        lasts=np.concatenate([np.zeros(0, np.int64), *(each.lasts for each in sets)]),
        counts=np.array([len(each) for each in sets], np.int64),
        repeating=np.array([at for at, _ in repeated], np.int64),
        repeated=np.array([number for _, number in repeated], np.int64),
    )


@given(ids)
def test_ranges_contain_exactly_the_row_ids_they_are_made_of(given: list[int]) -> None:
    found = IdRanges.of(np.array(given, np.int64))
    assert numbers(found) == sorted(set(given))
    assert all(two - 1 > one for one, two in pairwise(numbers_of_ends(found)))
    assert found.repeated == smallest_repeated(given)


def numbers_of_ends(ranges: IdRanges) -> list[int]:
    """The first row IDs of the ranges, which are apart."""
    return [int(first) for first in ranges.firsts]


@given(st.lists(ids, max_size=5), st.integers(1, 8))
def test_a_file_is_divided_into_parts_of_bounded_size(given: list[list[int]], most: int) -> None:
    parts = list(parts_of([np.array(batch, np.int64) for batch in given], most))
    assert parts and all(len(part) <= most for part in parts)
    rows = [number for batch in given for number in batch]
    assert {number for part in parts for number in numbers(part)} == set(rows)
    whole = IdRanges.join(parts)
    assert numbers(whole) == sorted(set(rows))
    assert whole.repeated == smallest_repeated(rows)


@pytest.mark.conformance("RT-19")
@given(st.lists(ids, max_size=12), st.data())
def test_a_file_is_named_with_its_smallest_row_id_that_another_row_had_before(
    files: list[list[int]], data: st.DataObject
) -> None:
    used, seen = UsedRowIds(), set[int]()
    at = 0
    while at < len(files):
        block = files[at : at + data.draw(st.integers(1, 5))]
        halves = [[file[::2], file[1::2]] for file in block]
        sets = [
            IdRanges.join([IdRanges.of(np.array(half, np.int64)) for half in two]) for two in halves
        ]
        parts, repeated = used.add(together(sets))
        named = dict(zip(parts.tolist(), repeated.tolist(), strict=True))
        assert list(named) == sorted(named) and len(named) == len(parts)
        for number, file in enumerate(block):
            common = [each for each in file if each in seen or file.count(each) > 1]
            assert named.get(number) == min(common, default=None)
            seen |= set(file)
        assert len(used) <= 2 * len(seen)
        at += len(block)
