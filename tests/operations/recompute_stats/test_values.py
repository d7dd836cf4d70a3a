"""Every bound contains every value, whatever the type, the value, and the encoding of the file."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.operations.statistics_repair import (
    check_bounds,
    leaves_of,
    planned,
    recompute,
    statistics,
)
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.table_rows import live_adds

Strategy = st.SearchStrategy[Any]

EDGES = ["", "a" * 32, "a" * 33, "é" * 33, "\U0010ffff" * 17, "\U0010ffff" * 40, "z" * 70, "\x7f"]
EDGES += ["a" * 31 + "😀b", "a" * 32 + "\x7f", "\ue000", "\U00010000", '"\\\n\x00']
INSTANT = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31)) | st.sampled_from(
    [date(1582, 10, 4), date(1899, 12, 31), date(1970, 1, 1)]
)
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999))


def integers(bits: int) -> Strategy:
    most = 2 ** (bits - 1)
    return st.integers(-most, most - 1) | st.sampled_from([-most, most - 1, 0])


def decimals(precision: int, scale: int) -> Strategy:
    most = 10**precision - 1
    return (st.integers(-most, most) | st.sampled_from([most, -most, 0])).map(
        lambda unscaled: Decimal((0, (), 0)) if not unscaled else _decimal(unscaled, scale)
    )


def _decimal(unscaled: int, scale: int) -> Decimal:
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -scale))


FLOATS = [math.nan, -0.0, 0.0, math.inf, -math.inf, 5e-324, 1e308]
SINGLES: dict[str, tuple[Any, pa.DataType, Strategy]] = {
    "byte": ("byte", pa.int8(), integers(8)),
    "short": ("short", pa.int16(), integers(16)),
    "integer": ("integer", pa.int32(), integers(32)),
    "long": ("long", pa.int64(), integers(64)),
    "float": (
        "float",
        pa.float32(),
        st.floats(width=32) | st.sampled_from([v for v in FLOATS if v not in (5e-324, 1e308)]),
    ),
    "double": ("double", pa.float64(), st.floats() | st.sampled_from(FLOATS)),
    "string": ("string", pa.string(), st.text(max_size=70) | st.sampled_from(EDGES)),
    "binary": ("binary", pa.binary(), st.binary(max_size=5)),
    "boolean": ("boolean", pa.bool_(), st.booleans()),
    "date": ("date", pa.date32(), DAYS),
    "timestamp": (
        "timestamp",
        pa.timestamp("us", "UTC"),
        TIMES.map(lambda at: at.replace(tzinfo=UTC)) | st.just(INSTANT),
    ),
    "timestamp_ntz": ("timestamp_ntz", pa.timestamp("us"), TIMES),
} | {
    f"decimal({p},{s})": (f"decimal({p},{s})", pa.decimal128(p, s), decimals(p, s))
    for p, s in ((1, 0), (9, 0), (9, 9), (10, 2), (15, 3), (16, 3), (18, 18), (19, 0), (20, 2))
    + ((28, 10), (30, 30), (37, 1), (38, 0), (38, 18), (38, 38))
}


def nested() -> dict[str, tuple[Any, pa.DataType, Strategy]]:
    found: dict[str, tuple[Any, pa.DataType, Strategy]] = {}
    for name, (kind, arrow, values) in SINGLES.items():
        inside = values | st.none()
        if not name.startswith("decimal") or name == "decimal(38,18)":
            array = {"type": "array", "elementType": kind, "containsNull": True}
            found[f"array<{name}>"] = (array, pa.list_(arrow), st.lists(inside, max_size=2))
        struct = {"type": "struct", "fields": [field("x", kind), field("deep", _deep(kind))]}
        of = pa.struct([("x", arrow), ("deep", pa.struct([("y", arrow)]))])
        deep = st.none() | st.fixed_dictionaries({"y": inside})
        found[f"struct<{name}>"] = (struct, of, st.fixed_dictionaries({"x": inside, "deep": deep}))
    mapping = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    entries = st.dictionaries(st.text(max_size=2), integers(64), max_size=2)
    kind = pa.map_(pa.string(), pa.int64())
    found["map"] = (mapping, kind, entries.map(lambda value: list(value.items())))
    return found


def _deep(kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [field("y", kind)]}


TYPES = SINGLES | nested()
WRITING = st.sampled_from(
    [
        {},
        {"row_group_size": 2},
        {"write_statistics": False},
        {"row_group_size": 3, "store_decimal_as_integer": True, "use_dictionary": False},
        {"use_deprecated_int96_timestamps": True},
    ]
)


def test_there_are_about_sixty_types() -> None:
    assert len(TYPES) >= 60


@pytest.mark.conformance("STAT-01", "STAT-03")
@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=8)
@given(data=st.data())
def test_every_bound_contains_every_value(name: str, data: st.DataObject) -> None:
    kind, arrow, values = TYPES[name]
    rows = data.draw(st.lists(values | st.none(), min_size=1, max_size=7))
    clustered = data.draw(st.booleans()) and name in SINGLES
    deleted = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=len(rows) - 1))
    domain = {"clusteringColumns": [["c"]], "domainName": "delta.clustering"}
    table = DataTable(
        field("c", kind),
        features=["deletionVectors", "timestampNtz", "clustering", "domainMetadata"],
        domains={"delta.clustering": json.dumps(domain)} if clustered else None,
    )
    column = pa.table({"c": pa.array(rows, arrow)})
    try:
        [path] = table.append(column, writing=data.draw(WRITING))
    except pa.ArrowException:
        return  # INT96 has a smaller range.
    if deleted:
        table.delete(path, sorted(deleted))
    result = recompute(table.store)
    assert (result.status, result.num_skipped) == ("recomputed", 0), result.problem
    stats = statistics(table.store)[path]
    stored = column["c"].to_pylist()
    # Bounds that are not tight are those of all physical rows.
    live = [value for at, value in enumerate(stored) if at not in deleted]
    assert stats["numRecords"] == len(rows)
    for leaf, each in leaves_of(live, "c", arrow):
        check_bounds({**stats, "numRecords": len(live)}, leaf, each)
    if clustered and arrow not in (pa.bool_(), pa.binary()):
        only_nulls = all(value is None for value in live)
        assert pa.types.is_string(arrow) or only_nulls or "c" in stats["minValues"]
    assert planned(table.store).is_noop
    assert recompute(table.store).num_commits == 0
    fields = live_adds(table.store)[path]
    wanted = table.live[path] | {"dataChange": False, "stats": fields["stats"]}
    assert {name: value for name, value in fields.items() if name != "tags"} == wanted


@pytest.mark.conformance("STAT-02")
def test_a_file_with_deleted_rows_has_bounds_that_are_not_tight_or_those_of_its_live_rows() -> None:
    table = DataTable(field("a", "long"), field("d", "double"), features=["deletionVectors"])
    rows = pa.table({"a": pa.array([1, 2, None, 900], pa.int64()), "d": [1.0, 2.0, 3.0, 4.0]})
    [exact] = table.append(rows)
    table.delete(exact, [3])
    assert recompute(table.store).files_decoded == 1
    stats = statistics(table.store)[exact]
    assert (stats["numRecords"], stats["tightBounds"]) == (4, True)
    assert stats["maxValues"] == {"a": 2, "d": 3} and stats["nullCount"] == {"a": 1, "d": 0}
    table = DataTable(field("a", "long"), features=["deletionVectors"])
    [wide] = table.append(rows.select(["a"]))
    table.delete(wide, [3])
    assert recompute(table.store).files_decoded == 0
    stats = statistics(table.store)[wide]
    assert (stats["numRecords"], stats["tightBounds"]) == (4, False)
    assert stats["maxValues"] == {"a": 900} and stats["nullCount"] == {"a": 1}


@pytest.mark.conformance("CLU-03", "STAT-03")
@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize(
    ("values", "least", "greatest"),
    [
        ([1.0, math.nan], {"c": 1, "o": False}, None),
        ([math.nan, None], {"c": "NaN", "o": False}, None),
        ([-math.inf, 3.0], {"c": "-Infinity", "o": False}, {"c": 3, "o": True}),
        ([math.inf, -math.inf], {"c": "-Infinity", "o": False}, {"c": "Infinity", "o": True}),
        ([None, None], {"o": False}, {"o": True}),
    ],
)
def test_with_nan_no_maximum_of_any_column_is_stated(
    values: list[float | None], clustered: bool, least: Any, greatest: Any
) -> None:
    domain = json.dumps({"clusteringColumns": [["c"]]})
    table = DataTable(
        field("c", "double"),
        field("o", "boolean"),
        features=["clustering", "domainMetadata"],
        domains={"delta.clustering": domain} if clustered else None,
    )
    [path] = table.append(pa.table({"c": pa.array(values, pa.float64()), "o": [True, False]}))
    recompute(table.store)
    stats = statistics(table.store)[path]
    assert (stats["minValues"], stats.get("maxValues")) == (least, greatest)
    assert planned(table.store).is_noop


@pytest.mark.conformance("STAT-03")
@pytest.mark.parametrize(
    ("values", "kind", "type_", "stated"),
    [
        ([date(1, 1, 1), None], pa.date32(), "date", {"minValues", "maxValues"}),
        ([2**31 - 1, 0], pa.date32(), "date", {"minValues"}),
        ([-(2**31), 0], pa.date32(), "date", {"maxValues"}),
        (["\U0010ffff" * 40, "a"], pa.string(), "string", {"minValues"}),
    ],
)
def test_bounds_of_a_file_are_stated_of_all_columns_or_of_none(
    values: list[Any], kind: pa.DataType, type_: str, stated: set[str]
) -> None:
    table = DataTable(field("c", type_), field("a", "long"), field("o", "boolean"))
    column = pa.array(values, pa.int32()) if pa.types.is_integer(pa.array(values).type) else values
    rows = {"c": pa.array(column).cast(kind), "a": [1, 2], "o": [True, False]}
    [path] = table.append(pa.table(rows))
    recompute(table.store)
    stats = statistics(table.store)[path]
    assert stats.keys() & {"minValues", "maxValues"} == stated
    assert all(stats[part].keys() == {"c", "a", "o"} for part in stated)
    assert planned(table.store).is_noop
    assert recompute(table.store, all_files=True).status == "recomputed"
    assert statistics(table.store)[path] == stats


@pytest.mark.conformance("STAT-03")
@pytest.mark.parametrize("clustered", [False, True])
def test_a_missing_maximum_beside_others_is_a_defect(clustered: bool) -> None:
    domain = json.dumps({"clusteringColumns": [["c"]]})
    table = DataTable(
        field("a", "long"),
        field("c", "double"),
        features=["clustering", "domainMetadata"],
        domains={"delta.clustering": domain} if clustered else None,
    )
    stats = {"numRecords": 2, "minValues": {"a": 1, "c": 3}, "nullCount": {"a": 0, "c": 0}}
    rows = pa.table({"a": [1, 2], "c": [3.0, math.nan]})
    [right] = table.append(rows, stats=json.dumps(stats))
    assert planned(table.store).is_noop
    [wrong] = table.append(rows, stats=json.dumps({**stats, "maxValues": {"a": 2}}))
    assert [each.column for each in planned(table.store).columns] == ["c"]
    assert recompute(table.store).files_recomputed == 1
    assert statistics(table.store)[wrong] == statistics(table.store)[right]
    assert planned(table.store).is_noop


@pytest.mark.conformance("STAT-03")
def test_booleans_without_bounds_are_no_defect_and_get_them_with_other_columns() -> None:
    """Delta Spark writes none."""
    table = DataTable(field("a", "long"), field("o", "boolean"))
    rows = pa.table({"a": [1, 2], "o": [True, False]})
    stats = {"numRecords": 2, "minValues": {"a": 1}, "maxValues": {"a": 2}}
    [whole] = table.append(rows, stats=json.dumps({**stats, "nullCount": {"a": 0, "o": 0}}))
    assert planned(table.store).is_noop
    [part] = table.append(rows, stats=json.dumps({**stats, "nullCount": {"o": 0}}))
    assert [each.column for each in planned(table.store).columns] == ["a"]
    recompute(table.store)
    found = statistics(table.store)
    assert found[whole]["minValues"] == {"a": 1}
    assert found[part]["minValues"] == {"a": 1, "o": False}
    assert found[part]["maxValues"] == {"a": 2, "o": True}


@given(columns=st.sets(st.integers(0, 9), max_size=5))
@settings(max_examples=10)
def test_statistics_that_a_file_has_are_kept(columns: set[int]) -> None:
    """What another writer stated, here wider than necessary, is replaced only where it is wrong."""
    table = DataTable(*(field(f"c{n}", "long") for n in range(10)))
    rows = pa.table({f"c{n}": pa.array([5, 6], pa.int64()) for n in range(10)})
    kept = [f"c{n}" for n in range(10) if n not in columns]
    stats = {
        "numRecords": 2,
        "minValues": dict.fromkeys(kept, 0),
        "maxValues": dict.fromkeys(kept, 9),
        "nullCount": dict.fromkeys(kept, 0),
    }
    [path] = table.append(rows, stats=json.dumps(stats))
    plan = planned(table.store)
    assert {each.column for each in plan.columns} == {f"c{n}" for n in columns}
    recompute(table.store)
    found = statistics(table.store)[path]
    for number in range(10):
        bounds = (found["minValues"][f"c{number}"], found["maxValues"][f"c{number}"])
        assert bounds == ((5, 6) if number in columns else (0, 9))
