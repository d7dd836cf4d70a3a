"""Which bounds of footers are believed, and which columns are decoded instead."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.protocol.statistics import StatisticsLeaf
from delta_maintenance.protocol.statistics.collect import ColumnStatistics
from delta_maintenance.table.data.copying.proof import bounds_of
from tests.support.rewrites.data_files import parquet

SPARK, ARROW = "parquet-mr version 1.16.0 (build x)", "parquet-cpp-arrow version 26.0.0"
LEAF = StatisticsLeaf(path=("c",), bounded=True)
DECIMAL = pa.decimal128(9, 2)
WIDE = pa.decimal128(38, 2)
INSTANT = pa.timestamp("us", "UTC")


def bounds(
    values: list[Any], kind: pa.DataType, *, created_by: str = ARROW, **options: Any
) -> ColumnStatistics | None:
    data = parquet(pa.table({"c": pa.array(values, kind)}), store_schema=False, **options)
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    return bounds_of(LEAF, kind, chunk, created_by)


@pytest.mark.conformance("RW-23")
@pytest.mark.parametrize(
    ("values", "kind", "least", "greatest"),
    [
        ([3, None, -1], pa.int16(), -1, 3),
        ([2**63 - 1, -(2**63)], pa.int64(), -(2**63), 2**63 - 1),
        ([date(1970, 1, 2), date(1969, 12, 31)], pa.date32(), -1, 1),
        ([datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], INSTANT, 1_000_000, 1_000_000),
        (["b", "ä", None], pa.string(), b"b", "ä".encode()),
        ([Decimal("1.25"), Decimal("-3")], DECIMAL, Decimal("-3"), Decimal("1.25")),
        ([Decimal("0.01"), Decimal(-(10**30))], WIDE, Decimal(-(10**30)), Decimal("0.01")),
        ([None, None], pa.int32(), None, None),
    ],
)
def test_bounds_that_every_writer_stores_alike_are_believed(
    values: list[Any], kind: pa.DataType, least: Any, greatest: Any
) -> None:
    nulls = values.count(None)
    for created_by in (SPARK, ARROW):
        found = bounds(values, kind, created_by=created_by, store_decimal_as_integer=True)
        assert found == ColumnStatistics(nulls=nulls, kind=kind, least=least, greatest=greatest)
    # Decimals in bytes.
    assert bounds(values, kind) == found


@pytest.mark.conformance("RW-23")
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_bounds_of_floats_are_believed_because_chunks_with_nan_have_none(kind: pa.DataType) -> None:
    wanted = ColumnStatistics(nulls=1, kind=kind, least=-0.5, greatest=1.5)
    for created_by in (SPARK, ARROW, "parquet-rs version 60.0.0", ""):
        assert bounds([1.5, None, -0.5], kind, created_by=created_by) == wanted
    assert bounds([1.5], kind, write_statistics=False) is None


@pytest.mark.parametrize("bound", ["min_raw", "max_raw"])
def test_a_bound_that_is_nan_is_not_believed(bound: str) -> None:
    stored = {"null_count": 0, "has_null_count": True, "has_min_max": True}
    numbers = {"min_raw": 0.5, "max_raw": 1.5} | {bound: float("nan")}
    statistics = SimpleNamespace(**stored, **numbers)
    chunk: Any = SimpleNamespace(statistics=statistics, num_values=2, physical_type="DOUBLE")
    assert bounds_of(LEAF, pa.float64(), chunk, SPARK) is None


@pytest.mark.conformance("RW-23")
@pytest.mark.parametrize(
    ("values", "kind", "options"),
    [
        ([Decimal("1.25")], WIDE, {"created_by": "parquet-rs version 60.0.0"}),
        ([datetime(2024, 1, 1, tzinfo=UTC)], INSTANT, {"use_deprecated_int96_timestamps": True}),
        (["x" * 64], pa.string(), {}),
        (["a", "x" * 64], pa.string(), {}),
        (["a"], pa.string(), {"created_by": "parquet-rs version 60.0.0"}),
        (["a"], pa.string(), {"created_by": ""}),
        ([1], pa.int64(), {"write_statistics": False}),
    ],
)
def test_columns_whose_bounds_may_be_cut_or_ordered_otherwise_are_decoded(
    values: list[Any], kind: pa.DataType, options: dict[str, Any]
) -> None:
    assert bounds(values, kind, **options) is None


@pytest.mark.conformance("RW-23")
@pytest.mark.parametrize("nulls", [-1, 11])
def test_an_impossible_number_of_nulls_leads_to_decoding(nulls: int) -> None:
    statistics = SimpleNamespace(has_null_count=True, null_count=nulls, has_min_max=False)
    chunk: Any = SimpleNamespace(statistics=statistics, num_values=10)
    uncounted = StatisticsLeaf(path=("c",), bounded=False)
    assert bounds_of(uncounted, pa.int64(), chunk, ARROW) is None
    statistics.null_count = 10
    assert bounds_of(uncounted, pa.int64(), chunk, ARROW) is not None
