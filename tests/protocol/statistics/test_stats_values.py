"""Single values of statistics in both forms, and their losses."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from delta_maintenance.protocol.statistics.as_json import (
    align_statistics,
    parse_statistics,
    render_statistics,
)
from tests.support.logs.typed_statistics import INSTANT, LOCAL, struct


def minimum(kind: pa.DataType) -> pa.StructType:
    return struct(minValues=struct(c=kind))


def read_minimum(value: str, kind: pa.DataType) -> tuple[pa.Array, tuple[tuple[str, ...], ...]]:
    found = parse_statistics(pa.array([f'{{"minValues":{{"c":{value}}}}}']), minimum(kind))
    assert not found.unreadable[0].as_py()
    return found.values.field("minValues").field("c"), found.lost


def rendered_minimum(column: pa.Array, kind: pa.StructType | None = None) -> Any:
    bounds = pa.StructArray.from_arrays([column], ["c"])
    text = render_statistics(pa.StructArray.from_arrays([bounds], ["minValues"]), kind)
    assert text.lost == ()
    return [text[len('{"minValues":{"c":') : -2] for text in text.values.to_pylist()]


def moment(microsecond: int) -> datetime:
    return datetime(1970, 1, 1, microsecond=microsecond, tzinfo=UTC)


VALUES: list[tuple[str, pa.DataType, Any]] = [
    ("9223372036854775807", pa.int64(), 2**63 - 1),
    ("-9223372036854775808", pa.int64(), -(2**63)),
    ("127", pa.int8(), 127),
    ("5.00", pa.int32(), 5),
    ("5", pa.float64(), 5.0),
    ("1e300", pa.float64(), 1e300),
    ("5e-324", pa.float64(), 5e-324),
    ("1.1", pa.float32(), float(np.float32("1.1"))),
    ("16777217", pa.float32(), 16777216.0),
    ("10.50", pa.decimal128(4, 2), Decimal("10.50")),
    ("10.5000", pa.decimal128(4, 2), Decimal("10.50")),
    ("0E-18", pa.decimal128(38, 18), Decimal(0)),
    ("1E+3", pa.decimal128(10, 0), Decimal(1000)),
    ("3", pa.decimal128(5, 2), Decimal(3)),
    ("9" * 38, pa.decimal128(38, 0), Decimal("9" * 38)),
    ('"2020-02-29"', pa.date32(), date(2020, 2, 29)),
    ('"0001-01-01"', pa.date32(), date(1, 1, 1)),
    ('"2021-09-08T11:11:11.000Z"', INSTANT, datetime(2021, 9, 8, 11, 11, 11, tzinfo=UTC)),
    (
        '"2020-01-01T08:09:10.001-08:00"',
        INSTANT,
        datetime(2020, 1, 1, 16, 9, 10, 1000, tzinfo=UTC),
    ),
    ('"2020-01-01 08:09:10.000456+05:30"', INSTANT,
     datetime(2020, 1, 1, 2, 39, 10, 456, tzinfo=UTC)),
    ('"2020-01-01T00:00:00.123456000Z"', INSTANT,
     datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)),
    ('"2020-01-01T08:09:10.001"', LOCAL, datetime(2020, 1, 1, 8, 9, 10, 1000)),
    ('"2024-09-09"', LOCAL, datetime(2024, 9, 9)),
    ('"\\ud83d\\ude00\\u2028\\u0000\\"\\\\\\/"', pa.string(), '\U0001f600\u2028\0"\\/'),
    ('"NaN"', pa.string(), "NaN"),
]  # fmt: skip


@pytest.mark.conformance("STAT-07")
@pytest.mark.parametrize(("text", "kind", "value"), VALUES, ids=[text for text, _, _ in VALUES])
def test_a_value_is_read_exactly(text: str, kind: pa.DataType, value: Any) -> None:
    found, lost = read_minimum(text, kind)
    assert (found.to_pylist(), lost) == ([value], ())


@pytest.mark.conformance("STAT-07")
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_non_finite_numbers_are_strings(kind: Any) -> None:
    words = ['"NaN"', '"Infinity"', '"-Infinity"', "-0.0", "-0"]
    texts = [f'{{"minValues":{{"c":{word}}}}}' for word in words]
    for batch in (texts, [*texts, "{"]):
        found = parse_statistics(pa.array(batch), minimum(kind))
        values = found.values.field("minValues").field("c")[:5]
        assert found.lost == ()
        assert np.isnan(values[0].as_py())
        assert values.to_pylist()[1:3] == [float("inf"), float("-inf")]
        assert np.signbit(values.to_numpy()[3:]).all()
        assert rendered_minimum(values) == ['"NaN"', '"Infinity"', '"-Infinity"', "-0.0", "-0.0"]


@pytest.mark.conformance("FILE-13")
@pytest.mark.parametrize("text", ['{":"NaN"1":"NaN"}', '{"minValues":{"c":"NaN"}'])
def test_invalid_json_with_non_finite_words_is_unreadable(text: str) -> None:
    found = parse_statistics(pa.array([text]), minimum(pa.float64()))
    assert (found.unreadable.to_pylist(), found.values.to_pylist()) == ([True], [None])


LOSSES: list[tuple[str, pa.DataType]] = [
    ("9223372036854775808", pa.int64()),
    ("128", pa.int8()),
    ("1.5", pa.int32()),
    ('"5"', pa.int32()),
    ("1e999", pa.float64()),
    ("1e39", pa.float32()),
    ('"nan"', pa.float64()),
    ("10.501", pa.decimal128(4, 2)),
    ("100", pa.decimal128(4, 2)),
    ("NaN", pa.decimal128(4, 2)),
    ("1" * 39, pa.decimal128(38, 0)),
    ('"2021-02-29"', pa.date32()),
    ('"2021-01-01T00:00:00Z"', pa.date32()),
    ('"today"', pa.date32()),
    ('"2020-01-01T00:00:00.000"', INSTANT),
    ('"2020-01-01"', INSTANT),
    ('"2020-01-01T00:00:00.000Z"', LOCAL),
    ('"2020-01-01T00:00:00.1234567Z"', INSTANT),
    ('"2020-01-01T24:00:00Z"', INSTANT),
    ('"2020-01-01T00:60:00Z"', INSTANT),
    ('"2020-01-01T00:00:00+00:99"', INSTANT),
    ('"+300000-01-01T00:00:00Z"', INSTANT),
    ('"\\ud800"', pa.string()),
    ("5", pa.string()),
    ("true", pa.int64()),
    ("[1]", pa.int64()),
    ('{"x":1}', pa.int64()),
]


@pytest.mark.conformance("STAT-06", "STAT-07", "CKPT-11")
@pytest.mark.parametrize(("text", "kind"), LOSSES, ids=[f"{t} as {k}" for t, k in LOSSES])
def test_inexact_values_are_reported(text: str, kind: pa.DataType) -> None:
    found, lost = read_minimum(text, kind)
    assert (found.to_pylist(), [path[:2] for path in lost]) == ([None], [("minValues", "c")])


@pytest.mark.conformance("STAT-05", "STAT-06")
@pytest.mark.parametrize("broken", [[], ["{"]], ids=["together", "one by one"])
def test_statistics_outside_the_struct_are_reported(broken: list[str]) -> None:
    text = (
        '{"numRecords":1,"minValues":{"v":"0rJld","c":1,"gone":{"x":null}},"nullCount":{"s":3},'
        '"statsWithCollation":{"ICU":{"min":{"c":"a"}}},"empty":{},"nothing":null}'
    )
    kind = struct(
        numRecords=pa.int64(), minValues=struct(c=pa.int64()), nullCount=struct(c=pa.int64())
    )
    found = parse_statistics(pa.array([text, *broken]), kind)
    assert found.lost == (
        ("minValues", "v"),
        ("nullCount", "s"),
        ("statsWithCollation", "ICU", "min", "c"),
    )
    assert found.values[0].as_py() == {
        "numRecords": 1,
        "minValues": {"c": 1},
        "nullCount": {"c": None},
    }


@pytest.mark.conformance("STAT-05")
def test_a_count_in_place_of_a_struct_is_reported() -> None:
    kind = struct(nullCount=struct(s=struct(x=pa.int64())))
    found = parse_statistics(pa.array(['{"nullCount":{"s":3}}']), kind)
    assert found.lost == (("nullCount", "s"),)
    assert found.values.to_pylist() == [{"nullCount": {"s": None}}]


@pytest.mark.conformance("FILE-13")
def test_rows_without_readable_statistics_are_null_and_marked() -> None:
    texts = [None, "{", '{"numRecords":1}', "7", "{}", "null", ""]
    found = parse_statistics(pa.array(texts), struct(numRecords=pa.int64()))
    assert found.values.to_pylist() == [
        None, None, {"numRecords": 1}, None, {"numRecords": None}, None, None
    ]  # fmt: skip
    assert found.unreadable.to_pylist() == [False, True, False, True, False, True, True]


@pytest.mark.conformance("FILE-13")
@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("brackets", ['{"a":}', '{"a":[]}'])
def test_deep_nesting_is_tolerated(depth: int, brackets: str) -> None:
    opening, closing = brackets[:-1].rstrip("]"), brackets[5:].lstrip("[")
    deep = opening * (depth // 2) + "1" + closing * (depth // 2)
    texts = [deep, '{"numRecords":1}', f'{{"numRecords":2,"x":"{"{[" * depth}"}}']
    found = parse_statistics(pa.array(texts), struct(numRecords=pa.int64()))
    assert found.values.field("numRecords").to_pylist()[1:] == [1, 2]
    assert found.unreadable[0].as_py() or found.lost


@pytest.mark.conformance("CKPT-14")
@pytest.mark.parametrize("broken", [[], ["{"]], ids=["together", "one by one"])
def test_both_spellings_of_null_counts_are_read(broken: list[str]) -> None:
    kind = struct(nullCount=struct(c=pa.int64()))
    texts = ['{"nullCounts":{"c":1}}', '{"nullCount":{"c":2}}', "{}"]
    found = parse_statistics(pa.array([*texts, *broken]), kind)
    assert found.lost == ()
    assert found.values.field("nullCount").field("c").to_pylist()[:3] == [1, 2, None]

    misspelt = pa.array(
        [{"nullCounts": {"c": 4}}, {"nullCounts": {"c": None}}, None],
        struct(nullCounts=struct(c=pa.int64())),
    )
    wanted = ['{"nullCount":{"c":4}}', '{"nullCount":{}}', None]
    assert render_statistics(misspelt).values.to_pylist() == wanted
    aligned = align_statistics(misspelt, kind).values.to_pylist()
    assert aligned == [{"nullCount": {"c": 4}}, {"nullCount": {"c": None}}, None]


@pytest.mark.conformance("CKPT-14")
def test_a_row_with_both_spellings_reports_a_loss() -> None:
    kind = struct(nullCount=struct(c=pa.int64()))
    found = parse_statistics(pa.array(['{"nullCount":{"c":2},"nullCounts":{"c":1}}']), kind)
    assert found.values.to_pylist() == [{"nullCount": {"c": 2}}]
    assert found.lost == (("nullCounts",),)


class TestRendering:
    @pytest.mark.conformance("STAT-03", "STAT-07")
    @pytest.mark.parametrize(
        ("values", "texts"),
        [
            (pa.array([2**63 - 1, -(2**63)]), ["9223372036854775807", "-9223372036854775808"]),
            (pa.array([4.0, 1e300, 0.1, -1e16]), ["4.0", "1e+300", "0.1", "-1e+16"]),
            (pa.array([1.1], pa.float32()), ["1.1"]),
            (
                pa.array([Decimal("0"), Decimal("-1E-18"), Decimal("12.5")], pa.decimal128(38, 18)),
                ["0.000000000000000000", "-0.000000000000000001", "12.500000000000000000"],
            ),
            (pa.array([-1, 0, 2932897, -719529], pa.int32()).view(pa.date32()),
             ['"1969-12-31"', '"1970-01-01"', '"+10000-01-01"', '"-0001-12-31"']),
            (pa.array([0, -1, 1_500], pa.int64()).view(INSTANT),
             ['"1970-01-01T00:00:00.000Z"', '"1969-12-31T23:59:59.999999Z"',
              '"1970-01-01T00:00:00.001500Z"']),
            (pa.array([1], pa.timestamp("ms", "America/New_York")), ['"1970-01-01T00:00:00.001Z"']),
            (pa.array([1_000_000], pa.timestamp("ns")), ['"1970-01-01T00:00:00.001Z"']),
            (pa.array([1_000], LOCAL), ['"1970-01-01T00:00:00.001"']),
            (pa.array(['a"\\\n\x01\x7f\u2028\U0001f600']),
             ['"a\\"\\\\\\n\\u0001\x7f\u2028\U0001f600"']),
            (pa.array(["x", "y"]).dictionary_encode(), ['"x"', '"y"']),
            (pa.array(["x"], pa.large_string()), ['"x"']),
            (pa.array([True]), ["true"]),
        ],
        ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
    )  # fmt: skip
    def test_values_are_rendered_as_delta_writers_do(
        self, values: pa.Array, texts: list[str]
    ) -> None:
        assert rendered_minimum(values) == texts

    def test_the_schema_decides_whether_a_timestamp_is_an_instant(self) -> None:
        naive, zoned = pa.array([0], LOCAL), pa.array([0], INSTANT)
        assert rendered_minimum(naive, minimum(INSTANT)) == ['"1970-01-01T00:00:00.000Z"']
        assert rendered_minimum(zoned, minimum(LOCAL)) == ['"1970-01-01T00:00:00.000"']

    def test_nulls_are_omitted_at_every_level(self) -> None:
        kind = struct(
            numRecords=pa.int64(),
            minValues=struct(a=pa.int64(), s=struct(b=pa.string())),
            tightBounds=pa.bool_(),
        )
        rows = [
            {"numRecords": 1, "minValues": {"a": 2, "s": {"b": "x"}}, "tightBounds": False},
            {"numRecords": None, "minValues": {"a": None, "s": {"b": None}}, "tightBounds": True},
            {"numRecords": 3, "minValues": {"a": None, "s": None}, "tightBounds": None},
            {"numRecords": None, "minValues": None, "tightBounds": None},
            None,
        ]
        assert render_statistics(pa.array(rows, kind)).values.to_pylist() == [
            '{"numRecords":1,"minValues":{"a":2,"s":{"b":"x"}},"tightBounds":false}',
            '{"minValues":{"s":{}},"tightBounds":true}',
            '{"numRecords":3,"minValues":{}}',
            "{}",
            None,
        ]

    @pytest.mark.conformance("STAT-06")
    def test_columns_without_a_json_form_are_reported(self) -> None:
        kind = struct(
            numRecords=pa.int64(),
            minValues=struct(
                v=struct(metadata=pa.binary(), value=pa.binary()),
                l=pa.list_(pa.int64()),
                unused=pa.binary(),
                at=pa.timestamp("ns"),
                c=pa.int64(),
            ),
        )
        bounds = {"v": {"metadata": b"m", "value": b"v"}, "l": [1], "unused": None, "at": 1, "c": 5}
        found = render_statistics(pa.array([{"numRecords": 1, "minValues": bounds}], kind))
        assert found.values.to_pylist() == ['{"numRecords":1,"minValues":{"c":5}}']
        assert found.lost == (
            ("minValues", "at"),
            ("minValues", "l"),
            ("minValues", "v", "metadata"),
            ("minValues", "v", "value"),
        )

    def test_an_invalid_string_is_reported(self) -> None:
        cut = pa.array([b"ok", b"\xe2\x82", None]).view(pa.string())
        bounds = pa.StructArray.from_arrays([cut], ["c"])
        found = render_statistics(pa.StructArray.from_arrays([bounds], ["minValues"]))
        assert found.lost == (("minValues", "c"),)
        texts = ['{"minValues":{"c":"ok"}}', '{"minValues":{}}', '{"minValues":{}}']
        assert found.values.to_pylist() == texts

    def test_names_are_escaped(self) -> None:
        kind = pa.struct([('a"\\\n\u00fc', pa.int64())])
        text = render_statistics(pa.array([{'a"\\\n\u00fc': 1}], kind)).values[0].as_py()
        assert json.loads(text) == {'a"\\\n\u00fc': 1}

    def test_a_slice_of_a_batch_renders_its_own_rows(self) -> None:
        rows = [{"minValues": {"c": f'"{row}"'}} for row in range(10)]
        parsed = pa.array(rows, minimum(pa.string())).slice(3, 2)
        texts = ['{"minValues":{"c":"\\"3\\""}}', '{"minValues":{"c":"\\"4\\""}}']
        assert render_statistics(parsed).values.to_pylist() == texts

    def test_no_rows_render_to_no_rows(self) -> None:
        assert render_statistics(pa.array([], minimum(pa.string()))).values.to_pylist() == []


class TestAlignment:
    @pytest.mark.conformance("CKPT-10")
    @pytest.mark.parametrize(
        ("found", "wanted", "value"),
        [
            (pa.array([1_000], pa.timestamp("ns")), INSTANT, moment(1)),
            (pa.array([1], LOCAL), INSTANT, moment(1)),
            (pa.array([1], pa.timestamp("ms", "Asia/Tokyo")), INSTANT, moment(1000)),
            (pa.array([1], INSTANT), LOCAL, datetime(1970, 1, 1, microsecond=1)),
            (pa.array([7], pa.int8()), pa.int64(), 7),
            (pa.array([7], pa.int32()), pa.float64(), 7.0),
            (pa.array([7], pa.int64()), pa.decimal128(5, 2), Decimal(7)),
            (pa.array([0.5], pa.float32()), pa.float64(), 0.5),
            (pa.array([Decimal(5)], pa.decimal128(4, 1)), pa.decimal128(38, 10), Decimal(5)),
            (pa.array([0], pa.date32()), LOCAL, datetime(1970, 1, 1)),
            (pa.array(["x"]).dictionary_encode(), pa.string(), "x"),
            (pa.nulls(1), pa.string(), None),
        ],
        ids=str,
    )  # fmt: skip
    def test_older_types_are_widened_exactly(
        self, found: pa.Array, wanted: pa.DataType, value: Any
    ) -> None:
        bounds = pa.StructArray.from_arrays([found], ["c"])
        aligned = align_statistics(
            pa.StructArray.from_arrays([bounds], ["minValues"]), minimum(wanted)
        )
        assert aligned.lost == ()
        assert aligned.values.type == minimum(wanted)
        assert aligned.values.to_pylist() == [{"minValues": {"c": value}}]

    @pytest.mark.conformance("STAT-07")
    @pytest.mark.parametrize(
        ("found", "wanted"),
        [
            (pa.array([1], pa.timestamp("ns")), INSTANT),
            (pa.array([300]), pa.int8()),
            (pa.array([2**60 + 1]), pa.float64()),
            (pa.array([1000]), pa.decimal128(4, 2)),
            (pa.array([0.1]), pa.float32()),
            (pa.array([0.1]), pa.decimal128(4, 2)),
            (pa.array([Decimal("1.25")], pa.decimal128(4, 2)), pa.decimal128(4, 1)),
            (pa.array(["5"]), pa.int64()),
            (pa.array([5]), pa.string()),
            (pa.array([0], pa.date32()), INSTANT),
            (pa.array([{"x": 1}], struct(x=pa.int64())), pa.string()),
            (pa.array([1]), struct(x=pa.int64())),
        ],
        ids=str,
    )
    def test_values_that_do_not_fit_are_reported(
        self, found: pa.Array, wanted: pa.DataType
    ) -> None:
        bounds = pa.StructArray.from_arrays([found], ["c"])
        aligned = align_statistics(
            pa.StructArray.from_arrays([bounds], ["minValues"]), minimum(wanted)
        )
        assert [path[:2] for path in aligned.lost] == [("minValues", "c")]
        assert aligned.values.to_pylist() == [{"minValues": {"c": None}}]

    def test_columns_may_be_in_any_order(self) -> None:
        source = pa.array(
            [{"extra": 1, "minValues": {"b": 2, "old": 3}}, None],
            struct(extra=pa.int64(), minValues=struct(b=pa.int64(), old=pa.int64())),
        )
        wanted = struct(numRecords=pa.int64(), minValues=struct(a=pa.string(), b=pa.int64()))
        aligned = align_statistics(source, wanted)
        assert aligned.values.to_pylist() == [
            {"numRecords": None, "minValues": {"a": None, "b": 2}},
            None,
        ]
        assert aligned.lost == (("extra",), ("minValues", "old"))
