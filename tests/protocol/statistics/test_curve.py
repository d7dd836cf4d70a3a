"""Keys on curves: each point once, neighbours adjacent, and the order of a slow reference."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.statistics.ranks import Curve, Ranks, bits_for, curve_keys

SMALL_GRIDS = [(1, 6), (2, 4), (3, 3), (4, 2), (5, 2), (6, 2)]


def grid(*sides: int) -> list[Ranks]:
    """All points of a box."""
    points = np.array(list(itertools.product(*(range(side) for side in sides))), np.uint64)
    return [points[:, axis].copy() for axis in range(len(sides))]


def walked(axes: list[Ranks], keys: Ranks) -> npt.NDArray[np.int64]:
    """The points in the order of their keys."""
    return np.stack(axes, 1).astype(np.int64)[np.argsort(keys, kind="stable")]


@pytest.mark.parametrize(("dimensions", "bits"), SMALL_GRIDS)
@pytest.mark.parametrize("curve", ["hilbert", "z-order", "linear"])
def test_every_point_has_its_own_key(dimensions: int, bits: int, curve: Curve) -> None:
    axes = grid(*[1 << bits] * dimensions)
    keys = curve_keys(axes, [bits] * dimensions, curve)
    assert sorted(keys.tolist()) == list(range(1 << bits * dimensions))


@pytest.mark.parametrize(("dimensions", "bits"), SMALL_GRIDS)
def test_successive_points_of_the_hilbert_curve_are_neighbours(dimensions: int, bits: int) -> None:
    axes = grid(*[1 << bits] * dimensions)
    steps = np.abs(np.diff(walked(axes, curve_keys(axes, [bits] * dimensions, "hilbert")), axis=0))
    assert (steps.sum(axis=1) == 1).all()


@pytest.mark.parametrize(("dimensions", "bits"), SMALL_GRIDS)
def test_each_aligned_part_of_the_hilbert_curve_is_a_cube(dimensions: int, bits: int) -> None:
    axes = grid(*[1 << bits] * dimensions)
    points = walked(axes, curve_keys(axes, [bits] * dimensions, "hilbert"))
    for level in range(1, bits):
        parts = points.reshape(-1, 1 << level * dimensions, dimensions)
        assert (np.ptp(parts, axis=1) == (1 << level) - 1).all()


def hilbert_2d(side: int, x: int, y: int) -> int:
    """The usual function for two dimensions, one point at a time."""
    found, step = 0, side // 2
    while step:
        right, upper = int(bool(x & step)), int(bool(y & step))
        found += step * step * ((3 * right) ^ upper)
        if not upper:
            if right:
                x, y = side - 1 - x, side - 1 - y
            x, y = y, x
        step //= 2
    return found


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_two_dimensions_follow_a_slow_reference(bits: int, random: object) -> None:
    draw = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    x, y = draw.integers(0, 1 << bits, (2, 50)).astype(np.uint64)
    expected = [hilbert_2d(1 << bits, *point) for point in zip(x.tolist(), y.tolist(), strict=True)]
    found = curve_keys([x, y], [bits, bits], "hilbert").tolist()
    mirrored = curve_keys([y, x], [bits, bits], "hilbert").tolist()
    # The curve may begin along either axis.
    assert expected in (found, mirrored)


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0)), min_size=2, max_size=4))
def test_z_order_interleaves_bits_from_the_first_column_on(columns: list[tuple[int, int]]) -> None:
    bits = [width for width, _ in columns]
    ranks = [value % (1 << width) for width, value in columns]
    most = max(bits)
    stretched = [
        format(rank, f"0{width}b").ljust(most, "0") for width, rank in zip(bits, ranks, strict=True)
    ]
    expected = int("".join("".join(digits) for digits in zip(*stretched, strict=True)), 2)
    arrays = [np.array([rank], np.uint64) for rank in ranks]
    assert curve_keys(arrays, bits, "z-order").tolist() == [expected]


@given(st.lists(st.tuples(*[st.integers(0, 7)] * 3), min_size=1))
def test_the_linear_order_is_lexicographic(points: list[tuple[int, int, int]]) -> None:
    ranks = [np.array(axis, np.uint64) for axis in zip(*points, strict=True)]
    keys = curve_keys(ranks, [3, 3, 3], "linear").tolist()
    assert sorted(points) == [point for _, point in sorted(zip(keys, points, strict=True))]


@pytest.mark.parametrize("curve", ["hilbert", "z-order"])
def test_a_column_with_few_values_leaves_the_curve_to_the_others(curve: Curve) -> None:
    flag, x, y = grid(2, 8, 8)
    keys = curve_keys([flag, x, y], [1, 3, 3], curve)
    assert len(np.unique(keys)) == len(keys)
    # Every eighth of the curve is one value of the flag and a quarter of the other columns.
    parts = walked([flag, x, y], keys).reshape(8, -1, 3)
    assert (np.ptp(parts, axis=1) == [0, 3, 3]).all()


def test_columns_with_one_rank_have_no_effect() -> None:
    x = np.arange(8, dtype=np.uint64)
    assert curve_keys([np.zeros_like(x), x], [0, 3], "hilbert").tolist() == x.tolist()
    assert curve_keys([np.zeros_like(x)], [0], "hilbert").tolist() == [0] * 8


def test_the_bits_of_all_columns_fit_into_a_key() -> None:
    assert [bits_for(count) for count in (1, 4, 5, 6, 9, 64)] == [16, 16, 12, 10, 7, 1]
