"""Ranks keep the order of values of every type, with nulls first and NaN last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.statistics.ranks import ColumnRanks, can_be_ranked

UTC = UTC
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), st.integers(-128, 127)),
    "long": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "decimal": (
        pa.decimal128(38, 2),
        st.decimals(Decimal(-(10**35)), Decimal(10**35), places=2, allow_nan=False),
    ),
    "date": (pa.date32(), st.dates()),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
    ),
    "string": (pa.string(), st.text(st.characters(codec="utf-8"))),
}


def key(value: Any) -> Any:
    """Sorts as ranks do: null, values, NaN; texts by their bytes."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value.encode() if isinstance(value, str) else value)


def drawn(data: st.DataObject, name: str) -> tuple[pa.DataType, list[Any]]:
    kind, values = TYPES[name]
    return kind, data.draw(st.lists(st.none() | values, min_size=1, max_size=60))


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data(), bits=st.integers(2, 16))
def test_ranks_keep_the_order_of_values(name: str, data: st.DataObject, bits: int) -> None:
    kind, values = drawn(data, name)
    column = pa.array(values, kind)
    ranks = ColumnRanks.of(column, bits=bits)
    found = ranks.ranks(column).tolist()
    assert max(found) < ranks.count <= 1 << bits
    by_value = sorted(zip(values, found, strict=True), key=lambda pair: key(pair[0]))
    assert [rank for _, rank in by_value] == sorted(found)
    distinct = {key(value) for value in column.to_pylist()}
    has_values = any(rank[0] == 1 for rank in distinct)
    if has_values and len(distinct) <= 1 << bits:
        # Each value has its own rank, and no more bits than that takes.
        assert len(set(found)) == len(distinct) == ranks.count
        assert ranks.bits == max(0, math.ceil(math.log2(len(distinct))))


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data(), bits=st.integers(2, 4))
def test_values_outside_of_the_sample_keep_their_order(
    name: str, data: st.DataObject, bits: int
) -> None:
    kind, sample = drawn(data, name)
    ranks = ColumnRanks.of(pa.array(sample, kind), bits=bits)
    _, others = drawn(data, name)
    found = ranks.ranks(pa.array(others, kind)).tolist()
    assert max(found) < 1 << bits
    pairs = [(v, r) for v, r in zip(others, found, strict=True) if key(v)[0] == 1]
    by_value = sorted(pairs, key=lambda pair: key(pair[0]))
    assert [rank for _, rank in by_value] == sorted(rank for _, rank in pairs)


def test_ranges_have_about_equal_numbers_of_rows() -> None:
    values = np.random.default_rng(0).lognormal(size=100_000)
    column = pa.array(values)
    counts = np.bincount(ColumnRanks.of(column, bits=4).ranks(column).astype(np.int64))
    assert len(counts) == 16
    assert counts.max() < 1.1 * counts.min()


def test_dictionaries_and_slices_count_as_their_values() -> None:
    text = pa.array(["b", None, "a", "c", "b"])
    ranks = ColumnRanks.of(text, bits=4)
    assert ranks.ranks(text.dictionary_encode()).tolist() == [2, 0, 1, 3, 2]
    assert ranks.ranks(text.slice(2)).tolist() == [1, 3, 2]
    days = pa.array([date(2026, 1, 2), None, date(2026, 1, 1)])
    assert ColumnRanks.of(days, bits=4).ranks(days.slice(1)).tolist() == [0, 1]


@pytest.mark.parametrize("values", [[], [None], [None, None], [math.nan], [0.0, -0.0]])
def test_columns_of_one_value_need_no_bits(values: Sequence[float | None]) -> None:
    ranks = ColumnRanks.of(pa.array(values, pa.float64()), bits=8)
    assert ranks.count - ranks.has_nulls - ranks.has_nan == 1
    assert set(ranks.ranks(pa.array([0.0, -0.0], pa.float64())).tolist()) == {int(ranks.has_nulls)}


def test_types_without_an_order_are_known() -> None:
    kinds = [pa.int8(), pa.string(), pa.decimal128(5, 2), pa.date32(), pa.timestamp("us")]
    assert all(map(can_be_ranked, kinds))
    others = [pa.bool_(), pa.binary(), pa.list_(pa.int8()), pa.map_(pa.string(), pa.int8())]
    assert not any(map(can_be_ranked, others))
