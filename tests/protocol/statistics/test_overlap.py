"""Overlap and depth of files, against a count of each pair."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.statistics.measures import histogram, overlap_elsewhere, overlaps

RANGES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=12
)


@given(RANGES)
def test_overlap_and_depth_are_those_of_all_pairs(ranges: list[tuple[int, int, int]]) -> None:
    files = [(min(a, b), max(a, b), part) for a, b, part in ranges]
    least, greatest, partition = (np.array(each, np.int64) for each in zip(*files, strict=True))
    found = overlaps(least, greatest, partition)

    def covering(value: int, part: int) -> int:
        return sum(low <= value <= high for low, high, own in files if own == part)

    depth = [max(covering(value, p) for value in range(low, high + 1)) for low, high, p in files]
    overlap = [
        sum(low <= other_high and other_low <= high for other_low, other_high, q in files if p == q)
        - 1
        for low, high, p in files
    ]
    assert found.depth.tolist() == depth
    assert found.overlap.tolist() == overlap


@given(RANGES)
def test_overlap_with_other_units_is_that_of_all_pairs(ranges: list[tuple[int, int, int]]) -> None:
    files = [(min(a, b), max(a, b), part) for a, b, part in ranges]
    least, greatest, partition = (np.array(each, np.int64) for each in zip(*files, strict=True))
    unit = 2 * partition + np.arange(len(files)) % 2
    expected = [
        any(
            part == other and own != at and low <= highest and lowest <= high
            for (lowest, highest, other), at in zip(files, unit, strict=True)
        )
        for (low, high, part), own in zip(files, unit, strict=True)
    ]
    assert overlap_elsewhere(least, greatest, partition, unit).tolist() == expected


def test_the_histogram_has_a_bucket_for_each_small_depth_and_for_powers_of_two() -> None:
    found = histogram(np.array([1, 1, 3, 16, 17, 32, 33, 1000]))
    assert found == {1: 2, 3: 1, 16: 1, 32: 2, 64: 1, 1024: 1}


def test_a_table_without_files_has_no_overlap() -> None:
    nothing = np.zeros(0, np.int64)
    assert overlaps(nothing, nothing).depth.tolist() == [] and histogram(nothing) == {}
