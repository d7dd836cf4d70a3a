"""Partition values: types, spellings, empty strings, time zones and invalid values."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.schema import (
    ArrayType,
    DecimalType,
    DeltaType,
    PrimitiveType,
    UnknownType,
    parse_schema,
    physical_name,
    to_arrow_type,
)
from delta_maintenance.protocol.schema.partition_values import (
    canonical_texts,
    is_valid,
    parse_partition_values,
    refusing_readers,
)

NAMES = [
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "float",
    "double",
    "boolean",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
]


def typed(name: str) -> DeltaType:
    if name.startswith("decimal"):
        precision, scale = name.removeprefix("decimal").split(".")
        return DecimalType(precision=int(precision), scale=int(scale))
    return PrimitiveType(name=name)


def parse(name: str, *texts: str | None, zone: Any = None) -> list[Any]:
    strings = pa.array(texts, type=pa.string())
    return list(parse_partition_values(strings, typed(name), zone=zone).values.to_pylist())


@pytest.mark.conformance("PART-02")
@pytest.mark.parametrize("name", [*NAMES, "decimal10.2"])
def test_empty_string_and_null_are_null_in_every_type(name: str) -> None:
    for strings in (
        pa.array(["", None, ""], type=pa.string()),
        pa.chunked_array([["", None], [""]], type=pa.string()),
    ):
        found = parse_partition_values(strings, typed(name), zone=None)
        assert found.values.to_pylist() == [None] * 3
        assert found.values.type == to_arrow_type(typed(name))
        assert found.uncertain.to_pylist() == [False] * 3


@pytest.mark.conformance("PART-04", "PART-07")
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("string", " x ", " x "),
        ("binary", "hello 😀", "hello 😀".encode()),
        ("binary", "\u0001", b"\x01"),
        ("boolean", "true", True),
        ("boolean", "false", False),
        ("integer", "0012", 12),
        ("integer", "-2147483648", -(2**31)),
        ("byte", "+127", 127),
        ("short", "-32768", -32768),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", "1e3", 1000.0),
        ("double", "2021.0", 2021.0),
        ("double", "-.5E-2", -0.005),
        ("double", "Infinity", math.inf),
        ("double", "-inf", -math.inf),
        ("float", "1.0", 1.0),
        ("decimal38.18", "12.000000000000000000", Decimal("12")),
        ("decimal38.18", "-99999999999999999999.999999999999999999", None),
        ("decimal10.2", "1e3", Decimal("1000")),
        ("decimal10.2", "1.5000", Decimal("1.5")),
        ("decimal38.0", "9" * 38, Decimal("9" * 38)),
        ("decimal2.2", "0.25", Decimal("0.25")),
        ("date", "2020-02-29", date(2020, 2, 29)),
        ("date", "2020-1-2", date(2020, 1, 2)),
        ("date", "0001-01-01", date(1, 1, 1)),
        ("timestamp_ntz", "2020-01-02", datetime(2020, 1, 2)),
        ("timestamp_ntz", "2020-01", datetime(2020, 1, 1)),
        ("timestamp_ntz", "2020-01-02T3:4", datetime(2020, 1, 2, 3, 4)),
        ("date", "2020", date(2020, 1, 1)),
        ("date", " 2020-02 ", date(2020, 2, 1)),
        ("date", "2020-02-02 00:00:00", date(2020, 2, 2)),
        ("date", "2020-02-02Tx", date(2020, 2, 2)),
    ],
)
def test_values_are_parsed_by_type(name: str, text: str, expected: Any) -> None:
    assert parse(name, text) == [Decimal(text) if expected is None else expected]


@pytest.mark.conformance("PART-04")
def test_not_a_number_is_a_float() -> None:
    assert all(math.isnan(value) for value in parse("float", "NaN", "nan"))


@pytest.mark.conformance("PART-04", "PART-05", "PART-06")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("boolean", "yes"),
        ("boolean", "1"),
        ("integer", "1e3"),
        ("integer", "1.0"),
        ("integer", "2147483648"),
        ("integer", " 1"),
        ("integer", "1_000"),
        ("integer", "١"),
        ("byte", "128"),
        ("long", "9" * 5000),
        ("double", "1_0.0"),
        ("double", "."),
        ("double", "0x1p3"),
        ("double", "e5"),
        ("decimal10.2", "1.005"),
        ("decimal10.2", "123456789.00"),
        ("decimal10.2", "NaN"),
        ("decimal10.2", "1e999"),
        ("decimal10.2", "1e999999999"),
        ("date", "2020-02-30"),
        ("date", "2020-02-02Z"),
        ("date", "20-02-02"),
        ("date", "0000-01-01"),
        ("date", "__HIVE_DEFAULT_PARTITION__"),
        ("timestamp", "2020-01-01 24:00:00"),
        ("timestamp", "2020-01-01 00:00Z"),
        ("timestamp", "2020-01-01T"),
        ("timestamp", "12:00:00"),
        ("timestamp", "2020-01-01 00:00:00+18:01"),
        ("timestamp", "2020-01-01 00:00:00+123"),
        ("timestamp", "2020-01-01 00:00:00 PST"),
        ("timestamp", "2020-01-01 00:00:00 Europe"),
        ("timestamp", "2020-01-01 00:00:00 ../UTC"),
        ("timestamp", "2020-01-01 00:00:00 localtime"),
        ("timestamp", "2020-01-01 00:00:00+25:00"),
        ("timestamp", "2020-01-01 00:00:00+01:60"),
        ("timestamp_ntz", "2020-01-01 00:00:00Z"),
        ("timestamp_ntz", "2020-01-01T00:00:00+01:00"),
    ],
)
def test_a_value_of_another_type_is_corruption(name: str, text: str) -> None:
    with pytest.raises(CorruptTableError) as caught:
        parse(name, None, "", text)
    assert repr(text)[:100] in caught.value.problem
    strings = pa.array([None, text, "", text])
    found = parse_partition_values(strings, typed(name), zone=None, strict=False)
    assert found.values.to_pylist() == [None] * 4
    assert found.invalid.to_pylist() == [False, True, False, True]
    assert not is_valid(text, typed(name))
    assert canonical_texts(strings, typed(name)).equals(strings)


EIGHT = datetime(2020, 1, 1, 8, 9, 10, tzinfo=UTC)
MILLIS = EIGHT.replace(microsecond=1000)
SPELLINGS = [
    ("2020-01-01 08:09:10", EIGHT, True),
    ("2020-01-01T08:09:10", EIGHT, True),
    ("2020-1-1 8:09:10", EIGHT, True),
    ("2020-01-01 08:09:10.", EIGHT, True),
    ("2020-01-01 08:09:10.0", EIGHT, True),
    ("2020-01-01 08:09:10.001", MILLIS, True),
    ("2020-01-01 08:09:10.001000", MILLIS, True),
    ("2020-01-01 08:09:10.001000999", MILLIS, True),
    ("2020-01-01T08:09:10.001", MILLIS, True),
    ("2020-01-01 08:09:10Z", EIGHT, False),
    ("2020-01-01T08:09:10Z", EIGHT, False),
    ("2020-01-01T08:09:10.000000Z", EIGHT, False),
    ("2020-01-01T08:09:10.001000Z", MILLIS, False),
    ("2020-01-01T08:09:10.001000000Z", MILLIS, False),
    ("2020-01-01T08:09:10+00:00", EIGHT, False),
    ("2020-01-01T09:09:10+01:00", EIGHT, False),
    ("2020-01-01 09:09:10+0100", EIGHT, False),
    ("2020-01-01 09:09:10+01", EIGHT, False),
    ("2019-12-31T22:39:10.001-09:30", MILLIS, False),
    ("2020-01-01T13:39:10+05:30", EIGHT, False),
    ("2020-01-01T13:9:10+5:00", EIGHT, False),
    ("2020-01-01 08:09:10 Z", EIGHT, False),
    ("2020-01-01 08:09:10 UTC", EIGHT, False),
    ("2020-01-01 08:09:10.001GMT", MILLIS, False),
    ("2020-01-01 10:09:10UTC+2", EIGHT, False),
    ("2020-01-01 09:09:10 Europe/Berlin", EIGHT, False),
    (" 2020-01-01 08:09:10.00100012345 ", MILLIS, True),
    ("2020-01-01", EIGHT.replace(hour=0, minute=0, second=0), True),
    ("2020-01", EIGHT.replace(hour=0, minute=0, second=0), True),
    ("2020", EIGHT.replace(hour=0, minute=0, second=0), True),
    ("2020-1-1 8:9", EIGHT.replace(second=0), True),
    ("2020-1-1T8", EIGHT.replace(minute=0, second=0), True),
]


@pytest.mark.conformance("PART-05")
@pytest.mark.parametrize(("text", "instant", "zoneless"), SPELLINGS)
def test_timestamp_spelling(text: str, instant: datetime, zoneless: bool) -> None:
    strings = pa.array([text])
    found = parse_partition_values(strings, typed("timestamp"), zone=None)
    assert found.values.to_pylist() == [instant]
    assert found.uncertain.to_pylist() == [zoneless]
    beirut = timezone(timedelta(hours=2))
    found = parse_partition_values(strings, typed("timestamp"), zone=beirut)
    shift = timedelta(hours=2) if zoneless else timedelta()
    assert found.values.to_pylist() == [instant - shift]
    assert found.uncertain.to_pylist() == [False]


@pytest.mark.conformance("PART-05")
def test_zone_with_changing_clocks() -> None:
    zone = ZoneInfo("Europe/Berlin")
    winter, summer, twice = "2021-01-01 12:00:00", "2021-07-01 12:00:00", "2021-10-31 02:30:00"
    assert parse("timestamp", winter, summer, twice, zone=zone) == [
        datetime(2021, 1, 1, 11, tzinfo=UTC),
        datetime(2021, 7, 1, 10, tzinfo=UTC),
        datetime(2021, 10, 31, 0, 30, tzinfo=UTC),
    ]


@pytest.mark.conformance("PART-05")
def test_extreme_timestamps() -> None:
    found = parse_partition_values(
        pa.array(["0001-01-01 00:00:00+14:00", "1969-12-31 23:59:59.999999Z"]),
        typed("timestamp"),
        zone=None,
    )
    assert found.values.cast(pa.int64()).to_pylist() == [
        -62_135_596_800_000_000 - 14 * 3_600_000_000,
        -1,
    ]


@pytest.mark.conformance("PART-06")
def test_timestamp_without_zone_is_never_uncertain_nor_shifted() -> None:
    strings = pa.array(["2013-07-05 17:01:00.123456", None])
    for zone in (None, timezone(timedelta(hours=5))):
        found = parse_partition_values(strings, typed("timestamp_ntz"), zone=zone)
        assert found.values.to_pylist() == [datetime(2013, 7, 5, 17, 1, 0, 123456), None]
        assert found.uncertain.to_pylist() == [False, False]


@pytest.mark.conformance("PART-05")
def test_uncertain_values_are_marked() -> None:
    strings = pa.chunked_array(
        [["2020-01-01 08:09:10", None, "2020-01-01T08:09:10Z"], [], ["", "2020-01-01 08:09:10"]]
    )
    found = parse_partition_values(strings, typed("timestamp"), zone=None)
    assert found.values.to_pylist() == [EIGHT, None, EIGHT, None, EIGHT]
    assert found.uncertain.to_pylist() == [True, False, False, False, True]


@pytest.mark.parametrize(
    "delta_type",
    [
        PrimitiveType(name="variant"),
        PrimitiveType(name="void"),
        UnknownType(definition="geometry(OGC:CRS84)"),
        ArrayType(element=PrimitiveType(name="long"), contains_null=True),
    ],
    ids=str,
)
@pytest.mark.conformance("SCHEMA-02")
def test_impossible_partition_types_are_refused(delta_type: DeltaType) -> None:
    with pytest.raises(UnsupportedFeatureError, match="partition columns of type"):
        parse_partition_values(pa.array(["x"]), delta_type, zone=None)


@pytest.mark.parametrize(
    "strings",
    [
        pa.array([], type=pa.string()),
        pa.chunked_array([], type=pa.string()),
        pa.array(["7", None, "7"], type=pa.large_string()),
        pa.array(["7", None, "7"]).dictionary_encode(),
        pa.chunked_array(
            [pa.array(["8"]).dictionary_encode(), pa.array(["7", "8"]).dictionary_encode()]
        ),
        pa.array(["9", "7", None]).slice(1),
        pa.nulls(2),
    ],
    ids=lambda strings: f"{type(strings).__name__} of {strings.type}",
)
def test_all_string_layouts_are_accepted(strings: pa.Array) -> None:
    expected = [None if text is None else int(text) for text in strings.to_pylist()]
    found = parse_partition_values(strings, typed("long"), zone=None)
    assert found.values.to_pylist() == expected
    assert isinstance(found.values, pa.Array)
    assert len(found.uncertain) == len(expected)


def test_timestamps_in_a_dictionary_with_a_null() -> None:
    dictionary = pa.array(["2020-01-01 08:09:10", None, ""], type=pa.large_string())
    strings = pa.DictionaryArray.from_arrays(pa.array([2, 1, 0, None]), dictionary)
    found = parse_partition_values(strings, typed("timestamp"), zone=None)
    assert found.values.to_pylist() == [None, None, EIGHT, None]
    assert found.uncertain.to_pylist() == [False, False, True, False]


def test_each_distinct_value_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from delta_maintenance.protocol.schema import partition_values

    calls = []
    monkeypatch.setattr(partition_values, "_date", lambda text: calls.append(text))
    parse("date", *["2020-01-01", "2020-01-02"] * 1000)
    assert sorted(calls) == ["2020-01-01", "2020-01-02"]


@pytest.mark.conformance("PART-04")
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none()))
def test_rendered_integers_are_parsed(numbers: list[int | None]) -> None:
    assert parse("long", *(None if n is None else str(n) for n in numbers)) == numbers


@pytest.mark.conformance("PART-04")
@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, max_value=10**9))
def test_rendered_decimals_are_parsed(number: Decimal) -> None:
    if abs(number) < 10**14:
        assert parse("decimal18.4", str(number)) == [number]


@pytest.mark.conformance("PART-05")
@given(st.datetimes(), st.integers(-14 * 60, 14 * 60))
def test_rendered_timestamps_are_parsed_with_any_offset(local: datetime, minutes: int) -> None:
    text = local.replace(tzinfo=timezone(timedelta(minutes=minutes))).isoformat()
    strings = pa.array([text])
    found = parse_partition_values(strings, typed("timestamp"), zone=None)
    micros = (local - datetime(1970, 1, 1)) // timedelta(microseconds=1) - minutes * 60_000_000
    assert found.values.cast(pa.int64()).to_pylist() == [micros]
    assert found.uncertain.to_pylist() == [False]


@pytest.mark.conformance("PART-04", "PART-05", "PART-06", "PART-07", "CM-03")
def test_corpus_partition_values_are_of_their_types(corpus: Path) -> None:
    texts: dict[DeltaType, set[str | None]] = {}
    for log in corpus.rglob("_delta_log"):
        columns: dict[str, DeltaType] = {}
        for path in sorted(log.glob("*.json")):
            actions = []
            for line in path.read_text(encoding="utf-8").split("\n"):
                with contextlib.suppress(ValueError):
                    actions.append(json.loads(line))
            for metadata in (a["metaData"] for a in actions if "metaData" in a):
                schema = parse_schema(metadata.get("schemaString") or EMPTY)
                mode = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
                columns = {
                    physical_name(field, mode): field.type
                    for name in metadata.get("partitionColumns") or []
                    if (field := schema.find(name)) is not None
                }
            for add in (a["add"] for a in actions if "add" in a):
                for name, text in (add.get("partitionValues") or {}).items():
                    if name in columns:
                        texts.setdefault(columns[name], set()).add(text)
    assert {str(delta_type) for delta_type in texts} > set(NAMES)
    for delta_type, values in texts.items():
        parse_partition_values(pa.array(list(values)), delta_type, zone=None)


EMPTY = '{"type":"struct","fields":[]}'


@given(st.text(min_size=1), st.sampled_from([*NAMES, "decimal10.2"]))
def test_arbitrary_text_is_parsed_or_corrupt(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    try:
        assert len(parse(name, text)) == 1
    except CorruptTableError as error:
        assert repr(text)[:10] in error.problem


SPELT = {
    "decimal10.2": ["1.5", "1.50", "01.5", "1.5E0", "+15e-1", "-.25", "-0", "7", "1e1", "99999999"],
    "decimal5.0": ["7", "07", "7.", "7.0", "-7"],
    "long": ["7", "+7", "-0", "007", "-9223372036854775808"],
    "boolean": ["true", "TRUE", "False"],
    "date": ["2026-01-02", "2026-1-2", "0001-01-01"],
    "timestamp": [
        *(
            "2026-01-02 03:04:05",
            "2026-01-02T03:04:05",
            "2026-01-02 03:04:05.120",
            "2026-1-2 3:04:05Z",
        ),
        *("2026-01-02T03:04:05+01:00", "2026-01-02 03:04:05-0130", "2026-01-02 03:04:05."),
    ],
    "timestamp_ntz": [
        "2026-01-02T03:04:05.5",
        "2026-01-02 03:04:05.",
        "1969-12-31 23:59:59.999999",
    ],
}
UNCHANGED = {"double": ["1.50", "NaN"], "string": ["", "A"], "binary": ["b"], "long": ["x", ""]}


@pytest.mark.conformance("PART-02")
@pytest.mark.parametrize("name", SPELT)
@pytest.mark.parametrize("zone", [None, timezone(timedelta(hours=5))])
def test_a_canonical_spelling_has_the_same_value_and_is_read_everywhere(
    name: str, zone: Any
) -> None:
    texts = [*SPELT[name], None, ""]
    found = canonical_texts(pa.array(texts, pa.string()), typed(name)).to_pylist()

    assert parse(name, *found, zone=zone) == parse(name, *texts, zone=zone)
    assert canonical_texts(pa.array(found, pa.string()), typed(name)).to_pylist() == found
    assert [refusing_readers(text or "", typed(name)) for text in found] == [None] * len(found)
    same: dict[Any, set[str | None]] = {}
    for value, text in zip(parse(name, *texts), found, strict=True):
        if name != "timestamp":
            same.setdefault(value, set()).add(text or None)
    assert all(len(spellings) == 1 for spellings in same.values())


@pytest.mark.parametrize("name", UNCHANGED)
def test_other_texts_have_no_other_spelling(name: str) -> None:
    texts = pa.array([*UNCHANGED[name], None], pa.string())
    assert canonical_texts(texts, typed(name)).equals(texts)
