"""The cube that the new files of a run join."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.statistics.clustering import CUBE_BYTES, newest_cube

CUBES = st.lists(
    st.tuples(
        st.sampled_from((0, 1, CUBE_BYTES - 1, CUBE_BYTES, 2 * CUBE_BYTES)), st.integers(0, 9)
    ),
    max_size=5,
)


@pytest.mark.conformance("CLU-04")
@given(CUBES)
def test_new_files_never_leave_a_second_cube_below_the_limit(cubes: list[tuple[int, int]]) -> None:
    sizes = np.array([size for size, _ in cubes], np.int64)
    times = np.array([time for _, time in cubes], np.int64)
    names = [str(number) for number in range(len(cubes))]
    kept = [name for name, (size, _) in zip(names, cubes, strict=True) if 0 < size < CUBE_BYTES]
    joined = newest_cube(names, sizes, times)
    if kept:
        assert joined in kept
        assert times[int(joined or 0)] == max(times[int(name)] for name in kept)
    elif joined is not None:
        # All of its files are replaced.
        assert sizes[int(joined)] == 0
    else:
        assert (sizes >= CUBE_BYTES).all()
