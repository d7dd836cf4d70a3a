"""Ranges of a file that are read together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.table.data.parquet.files import joined_ranges

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda x: (x[0], sum(x))))


@given(RANGES, st.integers(0, 5))
def test_joined_ranges_contain_the_given_ones_and_small_gaps_only(
    ranges: list[tuple[int, int]], gap: int
) -> None:
    found = joined_ranges(ranges, gap=gap)
    assert all(
        any(first <= start and end <= last for first, last in found) for start, end in ranges
    )
    assert all(one[1] + gap < other[0] for one, other in zip(found, found[1:], strict=False))
    ends = {end for _, end in ranges}
    assert {start for start, _ in found} <= {start for start, _ in ranges}
    assert {end for _, end in found} <= ends
    for first, last in found:
        inside = sorted(each for each in ranges if first <= each[0] <= last)
        reached = first
        for start, end in inside:
            assert start <= reached + gap
            reached = max(reached, end)
        assert reached == last
