"""The numbers of partitions, against a search in each map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.protocol.actions.file_columns import STRING_MAP
from delta_maintenance.table.read import partition_codes as module

NAMES = st.sampled_from(["a", "b", "c"])
ENTRIES = st.lists(st.tuples(NAMES, st.none() | st.sampled_from(["", "x", "y"])), max_size=3)
ALIKE = st.lists(NAMES, max_size=3).flatmap(
    lambda names: st.lists(
        st.tuples(*(st.tuples(st.just(name), st.sampled_from(["x", None])) for name in names)),
        max_size=6,
    )
)


@settings(deadline=None, max_examples=200)
@given(
    maps=ALIKE | st.lists(ENTRIES | st.none(), max_size=6),
    start=st.integers(0, 2),
    width=st.integers(0, 3),
)
def test_a_value_is_found_where_a_search_finds_it(maps: list[Any], start: int, width: int) -> None:
    column = pa.array([None if m is None else list(m) for m in maps], STRING_MAP).slice(start)
    found = module._looked_up(column, "b", width)
    assert found.to_pylist() == pc.map_lookup(column, "b", "first").to_pylist()


@pytest.mark.parametrize(
    "other", [[("b", "3"), ("a", "4")], [("a", "3"), ("c", "4")], [("b", "3"), ("b", "4")]]
)
def test_one_map_with_other_keys_is_noticed(other: list[tuple[str, str]]) -> None:
    column = pa.array([[("a", "1"), ("b", "2")], other], STRING_MAP)
    expected = pc.map_lookup(column, "b", "first").to_pylist()
    assert module._looked_up(column, "b", 2).to_pylist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 12) | st.integers(0, 1 << 40), max_size=20))
def test_numbers_are_made_dense_in_their_order(numbers: list[int]) -> None:
    given_ones = np.array(numbers, np.int64)
    expected = np.unique(given_ones, return_inverse=True)[1]
    assert module._dense(given_ones).tolist() == expected.tolist()
