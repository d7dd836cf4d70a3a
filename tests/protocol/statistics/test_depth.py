"""Depth is the number of files whose bounds contain a point."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.statistics import ranks
from delta_maintenance.protocol.statistics.measures import overlaps
from delta_maintenance.protocol.statistics.ranks import Boxes, Depth, depth_of, is_better

PAIR = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(st.lists(st.tuples(PAIR, PAIR, st.integers(1, 5))), st.lists(PAIR, max_size=20))
def test_depth_equals_that_of_a_slow_reference(
    files: list[tuple[tuple[int, int], tuple[int, int], int]], points: list[tuple[int, int]]
) -> None:
    x, y = ([sorted(file[column]) for file in files] for column in (0, 1))
    low = np.array([[a[0], b[0]] for a, b in zip(x, y, strict=True)], np.uint64).reshape(-1, 2)
    high = np.array([[a[1], b[1]] for a, b in zip(x, y, strict=True)], np.uint64).reshape(-1, 2)
    rows = np.array([count for *_, count in files], np.int64)
    hits = [
        count
        for p, q in points
        for a, b, count in zip(x, y, rows.tolist(), strict=True)
        if a[0] <= p <= a[1] and b[0] <= q <= b[1]
    ]
    every = max(1, len(points))
    expected = Depth(files=len(hits) / every, rows=sum(hits) / every)
    found = np.array(points, np.uint64).reshape(-1, 2)
    cells = ranks._CELLS
    try:
        ranks._CELLS = 7
        assert depth_of(Boxes(low=low, high=high, rows=rows), found) == expected
    finally:
        ranks._CELLS = cells


def test_files_are_better_clustered_if_readers_open_fewer_or_smaller_files() -> None:
    before = Depth(files=4.0, rows=400.0)
    assert is_better(before, Depth(files=3.9, rows=500.0))
    assert is_better(before, Depth(files=4.0, rows=399.0))
    assert not is_better(before, before)
    # One file for each value cannot be improved.
    assert is_better(Depth(files=1.0, rows=10.0), Depth(files=1.0, rows=30.0))


@given(st.lists(PAIR, min_size=1, max_size=12))
def test_the_deepest_point_of_a_file_is_the_depth_of_its_overlaps(
    pairs: list[tuple[int, int]],
) -> None:
    low, high = np.sort(np.array(pairs, np.int64), axis=1).T
    (inside,) = ranks.files_at_points([low], [high], [np.arange(10)])
    deepest = [inside.sum(axis=1)[a : b + 1].max() for a, b in zip(low, high, strict=True)]
    assert overlaps(low, high, np.zeros(len(low), np.int64)).depth.tolist() == deepest
