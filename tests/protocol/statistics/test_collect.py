"""Statistics of written rows, which must never mislead a reader."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.statistics.collect import (
    StatisticsCollector,
    text_maximum,
    text_minimum,
)
from delta_maintenance.protocol.statistics.columns import (
    StatisticsColumns,
    StatisticsLeaf,
    stats_columns_problem,
)


def collected(table: pa.Table, *names: str, tight: bool = False) -> dict[str, Any]:
    """The statistics of a table's columns, its rows offered in batches of three."""
    leaves = tuple(
        StatisticsLeaf(path=tuple(name.split(".")), bounded=True)
        for name in names or table.column_names
    )
    collector = StatisticsCollector(
        StatisticsColumns(leaves=leaves, tight_bounds=tight), table.schema
    )
    for batch in table.to_batches(max_chunksize=3):
        collector.offer(batch)
    found: dict[str, Any] = json.loads(
        collector.render(), parse_float=Decimal, parse_constant=lambda text: pytest.fail(text)
    )
    return found


@given(st.text())
@pytest.mark.conformance("STAT-03", "RW-22")
def test_bounds_of_texts_are_short_and_safe(text: str) -> None:
    least, greatest = text_minimum(text), text_maximum(text)
    assert len(least) <= 32 and least.encode() <= text.encode()
    if greatest is None:
        assert "\U0010ffff" in text
    else:
        assert greatest.encode() >= text.encode()
        assert len(greatest.encode("utf-16-le")) // 2 <= 66


def test_a_column_has_bounds_whatever_its_name_and_the_bounds_of_others() -> None:
    table = pa.table({"nullCounts": [3, 1], "b": [math.nan, 2.0]})
    assert collected(table, "nullCounts")["maxValues"] == {"nullCounts": 3}
    found = collected(table)
    assert found["minValues"] == {"nullCounts": 1, "b": 2} and "maxValues" not in found
    assert found["nullCount"] == {"nullCounts": 0, "b": 0}


@pytest.mark.conformance("STAT-03")
@pytest.mark.parametrize(
    ("text", "greatest"),
    [
        ("a" * 32, "a" * 32),
        ("a" * 33, "a" * 32 + "\x7f"),
        ("a" * 32 + "\x7f", "a" * 32 + "\U0010ffff"),
        ("a" * 32 + "ü", "a" * 32 + "\U0010ffff"),
        # No surrogate pair is cut in two.
        ("a" * 31 + "😀b", "a" * 31 + "\U0010ffff"),
        ("\U0010ffff" * 16 + "b", "\U0010ffff" * 16 + "\x7f"),
        ("\U0010ffff" * 40, None),
    ],
)
def test_a_maximum_ends_like_delta_sparks(text: str, greatest: str | None) -> None:
    assert text_maximum(text) == greatest


@given(st.lists(st.none() | st.floats(width=32), min_size=1, max_size=9))
@pytest.mark.conformance("RW-22", "STAT-07")
def test_with_nan_there_is_no_maximum(values: list[float | None]) -> None:
    found = collected(pa.table({"f": pa.array(values, pa.float32())}))
    real = [value for value in values if value is not None and not math.isnan(value)]
    greatest = found.get("maxValues", {}).get("f")
    least = found.get("minValues", {}).get("f")
    if greatest is not None:
        assert not any(value is not None and math.isnan(value) for value in values)
        assert float(greatest) == max(real)
        assert math.copysign(1, float(greatest)) >= math.copysign(1, max(real))
    if least is not None:
        assert float(least) == min(real)
        assert math.copysign(1, float(least)) <= math.copysign(1, min(real))
    assert found["nullCount"]["f"] == values.count(None)


def test_zeros_are_bounded_by_both_signs() -> None:
    text = StatisticsCollector(
        StatisticsColumns(leaves=(StatisticsLeaf(path=("f",), bounded=True),), tight_bounds=False),
        pa.schema([("f", pa.float64())]),
    )
    text.offer(pa.record_batch({"f": [0.0]}))
    assert text.render() == (
        '{"numRecords":1,"minValues":{"f":-0.0},"maxValues":{"f":0.0},"nullCount":{"f":0}}'
    )


@given(st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=7))
@pytest.mark.conformance("RW-22", "STAT-07")
def test_decimals_keep_every_digit(values: list[int | None]) -> None:
    exact = [None if value is None else Decimal(f"{value}E-10") for value in values]
    found = collected(pa.table({"d": pa.array(exact, pa.decimal128(38, 10))}))
    real = [value for value in exact if value is not None]
    if real:
        assert Decimal(str(found["minValues"]["d"])) == min(real)
        assert Decimal(str(found["maxValues"]["d"])) == max(real)


@given(st.lists(st.datetimes(), min_size=1, max_size=7))
@pytest.mark.conformance("STAT-03")
def test_timestamps_are_cut_to_milliseconds_of_which_readers_add_one(values: list[Any]) -> None:
    zoned = [value.replace(tzinfo=UTC) for value in values]
    found = collected(
        pa.table(
            {
                "l": pa.array(values, pa.timestamp("us")),
                "t": pa.array(zoned, pa.timestamp("us", "UTC")),
            }
        )
    )
    for name, of, zone in (("l", values, ""), ("t", values, "Z")):
        least, greatest = found["minValues"][name], found["maxValues"][name]
        assert least.endswith(zone) and len(least) == len("2024-01-01T00:00:00.123") + len(zone)
        start, end = (datetime.fromisoformat(text.rstrip("Z")) for text in (least, greatest))
        assert start <= min(of) < start + timedelta(milliseconds=1)
        assert end <= max(of) < end + timedelta(milliseconds=1)


def test_unreadable_days_are_no_bounds() -> None:
    far = pa.array([-800_000, 3_000_000], pa.int32()).view(pa.date32())
    found = collected(pa.table({"d": far}))
    assert "minValues" not in found and "maxValues" not in found
    usual = collected(pa.table({"d": [date(1, 1, 1), date(9999, 12, 31)]}))
    assert (usual["minValues"]["d"], usual["maxValues"]["d"]) == ("0001-01-01", "9999-12-31")


@pytest.mark.conformance("STAT-04", "STAT-08", "RW-22")
def test_leaves_of_structs_count_the_nulls_above_them() -> None:
    rows = [{"x": 1, "l": [1]}, None, {"x": None, "l": None}, {"x": 5, "l": []}]
    kind = pa.struct([("x", pa.int64()), ("l", pa.list_(pa.int64()))])
    table = pa.table({"s": pa.array(rows, kind)})
    collector = StatisticsCollector(
        StatisticsColumns(
            leaves=(
                StatisticsLeaf(path=("s", "x"), bounded=True),
                StatisticsLeaf(path=("s", "l"), bounded=False),
                StatisticsLeaf(path=("gone",), bounded=True),
            ),
            tight_bounds=True,
        ),
        table.schema,
    )
    for batch in table.to_batches(max_chunksize=2):
        collector.offer(batch)
    assert json.loads(collector.render()) == {
        "numRecords": 4,
        "minValues": {"s": {"x": 1}},
        "maxValues": {"s": {"x": 5}},
        "nullCount": {"s": {"x": 2, "l": 2}, "gone": 4},
        "tightBounds": True,
    }


def test_unused_dictionary_entries_are_no_bounds() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([1, None]), pa.array(["a", "m", "z"]))
    found = collected(pa.table({"s": values}))
    assert (found["minValues"], found["maxValues"]) == ({"s": "m"}, {"s": "m"})


def field(name: str, kind: object, physical: str | None = None) -> dict[str, object]:
    mapped = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": 1}
    return {
        "name": name,
        "type": kind,
        "nullable": True,
        "metadata": mapped if physical is not None else {},
    }


STRUCT = {"type": "struct", "fields": [field("X y", "long", "px"), field("z", "string", "pz")]}
FIELDS = [
    field("part", "string", "pp"),
    field("s", STRUCT, "ps"),
    field("v", "void", "pv"),
    field("a.b", "long", "pa"),
    field("c", {"type": "array", "elementType": "long", "containsNull": True}, "pc"),
]


def chosen(configuration: dict[str, str], domains: dict[str, str] | None = None) -> list[str]:
    protocol = Protocol(
        min_reader_version=2, min_writer_version=7, writer_features=("columnMapping",)
    )
    metadata = Metadata(
        id="t",
        schema_string=json.dumps({"type": "struct", "fields": FIELDS}),
        partition_columns=("part",),
        configuration={"delta.columnMapping.mode": "name"} | configuration,
    )
    columns = StatisticsColumns.of(protocol, metadata, domains or {})
    return [".".join(leaf.path) for leaf in columns.leaves]


@pytest.mark.conformance("STAT-04", "RW-22", "CM-03", "CLU-03")
@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ({}, ["ps.px", "ps.pz", "pa", "pc"]),
        ({"delta.dataSkippingNumIndexedCols": "1"}, ["ps.px"]),
        ({"delta.dataSkippingNumIndexedCols": "0"}, []),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, ["ps.px", "ps.pz", "pa", "pc"]),
        ({"delta.dataSkippingStatsColumns": "S.Z, `A.b`"}, ["ps.pz", "pa"]),
        ({"delta.dataSkippingStatsColumns": "s"}, ["ps.px", "ps.pz"]),
        ({"delta.dataSkippingStatsColumns": "s.`x y`,c"}, ["ps.px", "pc"]),
        (
            {"delta.dataSkippingStatsColumns": "`", "delta.dataSkippingNumIndexedCols": "1"},
            ["ps.px"],
        ),
    ],
)
def test_the_columns_are_those_that_the_table_asks_for(
    configuration: dict[str, str], expected: list[str]
) -> None:
    assert chosen(configuration) == expected


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (None, None),
        ("S.Z, `A.b`", None),
        ("s", None),
        ("c, gone,s.y", "names gone, s.y, which no data column is called"),
        ("A.b", "names A.b, which"),
        ("part", "names part, which"),
        ("", "names no column"),
        ("`", "cannot be parsed"),
        ("x" * 10_000, "…"),
    ],
)
def test_columns_that_a_table_names_and_lacks_are_said(
    columns: str | None, problem: str | None
) -> None:
    named = {} if columns is None else {"delta.dataSkippingStatsColumns": columns}
    schema = json.dumps({"type": "struct", "fields": FIELDS})
    found = stats_columns_problem(
        Metadata(
            id="t",
            schema_string=schema,
            partition_columns=("part",),
            configuration={"delta.columnMapping.mode": "name"} | named,
        )
    )
    if problem is None:
        assert found is None
    else:
        assert found is not None and problem in found and len(found) < 500


@pytest.mark.conformance("CLU-03")
def test_clustering_columns_always_have_statistics() -> None:
    clustered = {"delta.clustering": json.dumps({"clusteringColumns": [["ps", "pz"], ["pa"]]})}
    only_one = {"delta.dataSkippingNumIndexedCols": "1"}
    assert chosen(only_one, clustered) == ["ps.px", "ps.pz", "pa"]
    with pytest.raises(RefusedError, match="clustering"):
        chosen({}, {"delta.clustering": '{"clusteringColumns": 7}'})
