"""The digest of a list of paths depends on the paths and on nothing else."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.operations.vacuum.candidates import (
    combined_digest,
    group_digest,
    grouped,
    path_digest,
)

PATHS = st.lists(st.text(max_size=20), unique=True, max_size=40)


@given(
    PATHS.flatmap(lambda paths: st.tuples(st.just(paths), st.permutations(paths))),
    st.integers(1, 9),
)
def test_order_and_batches_do_not_matter(orders: tuple[list[str], list[str]], size: int) -> None:
    whole, mixed = path_digest([pa.array(orders[0], pa.string())]), pa.array(orders[1], pa.string())
    batches = [mixed.slice(at, size) for at in range(0, len(mixed), size)]
    assert path_digest(batches) == whole
    # As Spark does it: groups apart, each in pieces.
    column = pa.chunked_array([mixed], pa.string())
    groups = {
        group: group_digest([column.take(pa.array([row])) for row in rows])
        for group, rows in grouped(column)
    }
    assert combined_digest(groups) == whole


@given(PATHS, PATHS)
def test_other_paths_have_another_digest(paths: list[str], others: list[str]) -> None:
    same = path_digest([pa.array(paths, pa.string())]) == path_digest(
        [pa.array(others, pa.string())]
    )
    assert same == (set(paths) == set(others))


def test_the_borders_between_paths_count() -> None:
    one = group_digest([pa.array(["ab", "c"])])
    assert one != group_digest([pa.array(["a", "bc"])])
    assert one == group_digest([pc.cast(pa.array(["c", "ab"]), pa.large_string())])
