"""Overlap and depth of files, against a count of each pair."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from delta_maintenance.protocol.statistics.bounds import Keys, sort_order
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


INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.integers(0, 1 << 40)
DOUBLES = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0])
PARTITIONS = st.integers(0, 2) | st.integers(0, 1 << 40)


@given(
    st.lists(st.tuples(INTEGERS, PARTITIONS), max_size=20)
    | st.lists(st.tuples(DOUBLES, PARTITIONS), max_size=20)
)
@example([(0.0, 0), (-0.0, 0)])
def test_the_order_is_by_partition_then_by_key_and_is_stable(rows: list[tuple[float, int]]) -> None:
    dtype = np.float64 if any(isinstance(key, float) for key, _ in rows) else np.int64
    keys: Keys = np.array([key for key, _ in rows], dtype)
    partition = np.array([part for _, part in rows], np.int64)
    expected = sorted(range(len(rows)), key=lambda row: (rows[row][1], rows[row][0]))
    assert sort_order(keys, partition).tolist() == expected


def test_a_table_without_files_has_no_overlap() -> None:
    nothing = np.zeros(0, np.int64)
    assert overlaps(nothing, nothing, nothing).depth.tolist() == [] and histogram(nothing) == {}
