"""Statistics round-trip exactly between JSON and columns, whatever they contain."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.schema import column_mapping_mode, parse_schema
from delta_maintenance.protocol.schema.types import (
    PrimitiveType,
    StructType,
    UnknownType,
    physical_schema,
)
from delta_maintenance.protocol.statistics.as_json import (
    align_statistics,
    num_records,
    parse_statistics,
    render_statistics,
)
from delta_maintenance.protocol.statistics.stats import statistics_arrow_type
from tests.support.suite.play import examples

BOUNDS = pa.struct(
    [
        ("long", pa.int64()),
        ("byte", pa.int8()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("decimal", pa.decimal128(38, 10)),
        ("small", pa.decimal128(5, 5)),
        ("date", pa.date32()),
        ("instant", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("string", pa.string()),
        ('odd "name"\\', pa.struct([("inner", pa.string())])),
    ]
)
STATISTICS = pa.struct(
    [
        ("numRecords", pa.int64()),
        ("minValues", BOUNDS),
        ("maxValues", BOUNDS),
        ("nullCount", pa.struct([("long", pa.int64()), ("list", pa.int64())])),
        ("tightBounds", pa.bool_()),
    ]
)
# Microseconds and days as integers, because Python's calendar is narrower than that of files.
RAW = {
    pa.date32(): pa.int32(),
    pa.timestamp("us", "UTC"): pa.int64(),
    pa.timestamp("us"): pa.int64(),
}
MOMENT = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.]+(Z|[+-]\d\d:\d\d)?)?")

longs = st.integers(-(2**63), 2**63 - 1)
digits = st.integers(-(10**38) + 1, 10**38 - 1)
strings = st.text(
    st.one_of(
        st.characters(codec="utf-8"), st.sampled_from('"\\/:{}[],\n\0\x1f\x7f\u2028 \U0001f600')
    )
) | st.sampled_from(["NaN", "Infinity", "-Infinity", "null", "} {", '":"NaN"'])
PIECES = [*'{}[]":,\\ \n\r1aeN.-\ud800', "null", "{}", "{}", '{"a":1}', '"numRecords"']
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): longs,
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.decimal128(38, 10): digits.map(lambda number: Decimal(f"{number}E-10")),
    pa.decimal128(5, 5): st.integers(-99_999, 99_999).map(lambda n: Decimal(f"{n}E-5")),
    pa.date32(): st.one_of(st.integers(-800_000, 3_000_000), st.integers(-(2**31), 2**31 - 1)),
    pa.timestamp("us", "UTC"): st.integers(-(10**14), 10**14).map(lambda n: n * 1000) | longs,
    pa.timestamp("us"): st.one_of(st.integers(-(10**17), 10**18), longs),
    pa.string(): strings,
    pa.bool_(): st.booleans(),
}  # fmt: skip


def rows_of(kind: pa.StructType) -> st.SearchStrategy[dict[str, Any] | None]:
    members = {
        field.name: rows_of(field.type)
        if pa.types.is_struct(field.type)
        else st.none() | VALUES[field.type]
        for field in kind
    }
    return st.none() | st.fixed_dictionaries(members)


def column_of(rows: list[Any], kind: pa.DataType) -> pa.Array:
    """A column; dates and timestamps are given as integers."""
    if not pa.types.is_struct(kind):
        return pa.array(rows, RAW.get(kind, kind)).cast(RAW.get(kind, kind)).view(kind)
    children = [
        column_of([None if row is None else row[field.name] for row in rows], field.type)
        for field in kind
    ]
    absent = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)


def exact(column: pa.Array) -> Any:
    """A form for comparison in which every bit counts, except that all NaNs are equal."""
    if pa.types.is_struct(column.type):
        return [
            pa.compute.is_valid(column).to_pylist(),
            *(exact(part) for part in column.flatten()),
        ]
    if pa.types.is_floating(column.type):
        return [None if value is None else value.hex() for value in column.to_pylist()]
    return column.view(RAW.get(column.type, column.type)).to_pylist()  # fmt: skip


def spark_json(value: Any, kind: pa.DataType) -> Any:
    """The JSON value that another writer writes for a usual value, computed independently."""
    if pa.types.is_struct(kind):
        return {
            field.name: spark_json(value[field.name], field.type)
            for field in kind
            if value[field.name] is not None
        }
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if pa.types.is_date(kind):
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if pa.types.is_timestamp(kind):
        text = (datetime(1970, 1, 1) + timedelta(microseconds=value)).isoformat(
            timespec="milliseconds" if value % 1000 == 0 else "microseconds"
        )
        return text + ("Z" if kind.tz else "")
    return f"decimal:{value:f}" if isinstance(value, Decimal) else value


def with_plain_decimals(text: str) -> str:
    """Replaces the marked strings that `json` wrote for decimals by their numbers."""
    return re.sub(r'"decimal:(-?[\d.]+)"', r"\1", text)


@pytest.mark.conformance("STAT-07", "CKPT-11")
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(rows_of(STATISTICS), max_size=6), broken=st.booleans())
def test_columns_round_trip_through_json(rows: list[Any], broken: bool) -> None:
    parsed = column_of(rows, STATISTICS)
    rendered = render_statistics(parsed, STATISTICS)
    assert rendered.lost == ()
    # A row that is not JSON makes Arrow reject the batch, so that rows are parsed one by one.
    texts = pa.concat_arrays([rendered.values, pa.array(["{"] if broken else [], pa.string())])
    again = parse_statistics(texts, STATISTICS)
    assert again.lost == ()
    assert exact(again.values.slice(0, len(rows))) == exact(parsed)
    assert again.unreadable.true_count == broken
    assert num_records(texts).to_pylist()[: len(rows)] == [
        None if count is None or count < 0 else count
        for count in (row and row["numRecords"] for row in rows)
    ]
    assert all(
        isinstance(json.loads(text), dict) for text in rendered.values.drop_null().to_pylist()
    )


@pytest.mark.conformance("STAT-07", "CKPT-11")
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    row=rows_of(STATISTICS), ascii_only=st.booleans(), spaced=st.booleans(), broken=st.booleans()
)
def test_json_of_other_writers_round_trips(
    row: Any, ascii_only: bool, spaced: bool, broken: bool
) -> None:
    row = _in_usual_years(row or {field.name: None for field in STATISTICS})
    text = json.dumps(
        spark_json(row, STATISTICS),
        ensure_ascii=ascii_only,
        indent=1 if spaced else None,
        separators=None if spaced else (",", ":"),
    )
    text = with_plain_decimals(text)
    found = parse_statistics(pa.array([text, *(["{"] if broken else [])]), STATISTICS)
    assert found.lost == ()
    assert exact(found.values.slice(0, 1)) == exact(column_of([row], STATISTICS))
    again = render_statistics(found.values, STATISTICS).values[0].as_py()
    assert _rounded(_members(again)) == _rounded(_members(text))


@settings(max_examples=examples(300), deadline=None)
@given(text=st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | strings)
@example(text='{"numRecords":1}}{')
@example(text="{}null{}")
def test_invalid_text_does_not_affect_other_rows(text: str) -> None:
    raw = pa.array([b'{"numRecords":1}', text.encode(errors="surrogatepass"), b'{"numRecords":2}'])
    found = parse_statistics(raw.view(pa.string()), pa.struct([("numRecords", pa.int64())]))
    counts = found.values.field("numRecords").to_pylist()
    assert (counts[0], counts[2]) == (1, 2)
    try:
        readable = isinstance(json.loads(text.encode()), dict)
    except (ValueError, UnicodeEncodeError):
        readable = False
    assert found.unreadable.to_pylist() == [False, not readable, False]


def _in_usual_years(value: Any) -> Any:
    """The same statistics with dates and timestamps that Python can represent."""
    usual = {"date": (-700_000, 2_900_000), "instant": (-(10**16), 10**17), "local": (0, 10**17)}
    if not isinstance(value, dict):
        return value
    return {
        name: max(usual[name][0], min(usual[name][1], member))
        if name in usual and member is not None
        else _in_usual_years(member)
        for name, member in value.items()
    }


def _rounded(members: Any) -> Any:
    """The same statistics with 32-bit floats compared by value, not by digits."""
    return {
        name: {
            key: member
            if key != "float" or isinstance(member, str)
            else pa.scalar(str(member)).cast(pa.float32()).as_py()
            for key, member in part.items()
        }
        if isinstance(part, dict)
        else part
        for name, part in members.items()
    }


def _members(text: str) -> Any:
    """Parsed JSON without empty members, numbers by value, and timestamps in UTC."""
    return _canonical(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def _canonical(value: Any) -> Any:
    if isinstance(value, str) and MOMENT.fullmatch(value):
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
    if not isinstance(value, dict):
        return value
    members = {name: _canonical(member) for name, member in value.items()}
    return {name: member for name, member in members.items() if member not in (None, {})}


def _commits(log: Path) -> list[dict[str, Any]]:
    lines = [
        line
        for commit in sorted(log.glob("[0-9]*.json"))
        if len(commit.name) == 25
        for line in commit.read_text().splitlines()
    ]
    return [json.loads(line) for line in lines if line.strip()]


def _statistics_type(
    actions: list[dict[str, Any]],
) -> tuple[pa.StructType, set[tuple[str, ...]]] | None:
    """The type according to the newest metadata, and the columns that cannot be converted."""
    metadata = [action["metaData"] for action in actions if action.get("metaData")]
    protocols = [action["protocol"] for action in actions if action.get("protocol")]
    if not metadata or not metadata[-1].get("schemaString"):
        return None
    schema = parse_schema(metadata[-1]["schemaString"])
    configuration = metadata[-1].get("configuration") or {}
    mode = column_mapping_mode(Protocol.from_json(protocols[-1]), configuration)
    partitions = metadata[-1].get("partitionColumns") or []
    kind = statistics_arrow_type(schema, partition_columns=partitions, mode=mode, tight_bounds=True)
    return kind, set(_unconvertible(physical_schema(schema, mode), ()))


def _unconvertible(struct: StructType, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the paths of the columns whose bounds have no form in Parquet."""
    for item in struct.fields:
        if isinstance(item.type, StructType):
            yield from _unconvertible(item.type, (*path, item.name))
        elif isinstance(item.type, UnknownType) or item.type == PrimitiveType(name="variant"):
            yield *path, item.name


def _every_table(corpus: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    tables = ((log.parent.name, _commits(log)) for log in sorted(corpus.glob("*/_delta_log")))
    return [(name, actions) for name, actions in tables if actions]


@pytest.mark.conformance("FILE-13", "STAT-01", "STAT-04", "STAT-06", "CKPT-11", "CKPT-13")
def test_statistics_of_real_commits_round_trip(corpus: Path) -> None:
    texts_seen, tables_with_variants = 0, 0
    for table, actions in _every_table(corpus):
        found = _statistics_type(actions)
        texts = [action["add"].get("stats") for action in actions if action.get("add")]
        texts = [text for text in texts if text]
        if found is None or not texts:
            continue
        kind, unconvertible = found
        parsed = parse_statistics(pa.array(texts), kind)
        assert {path[1:] for path in parsed.lost} <= unconvertible, (table, parsed.lost)
        tables_with_variants += bool(parsed.lost)
        assert parsed.unreadable.true_count == 0, table
        rendered = render_statistics(parsed.values, kind)
        assert rendered.lost == (), table
        assert num_records(pa.array(texts)) == num_records(rendered.values), table
        if not parsed.lost:
            for text, again in zip(texts, rendered.values.to_pylist(), strict=True):
                wanted = _members(text.replace('"nullCounts"', '"nullCount"'))
                assert _members(again) == wanted, table
        texts_seen += len(texts)
    assert (texts_seen > 1000, tables_with_variants) == (True, 3)


@pytest.mark.conformance("CKPT-10", "CKPT-11", "CKPT-14")
def test_statistics_of_real_checkpoints_equal_their_commits(corpus: Path) -> None:
    tables, structs_alone = set(), set()
    for table, actions in _every_table(corpus):
        found = _statistics_type(actions)
        stats = {
            action["add"]["path"]: action["add"].get("stats")
            for action in actions
            if action.get("add")
        }
        for file in sorted((corpus / table / "_delta_log").rglob("*.parquet")):
            schema = pq.read_schema(file)
            if found is None or schema.get_field_index("add") < 0:
                continue
            members = {field.name for field in schema.field("add").type}
            if "stats_parsed" not in members:
                continue
            adds = pa.concat_arrays(pq.read_table(file, columns=["add"])["add"].chunks)
            adds = adds.filter(adds.is_valid())
            rendered = render_statistics(adds.field("stats_parsed"), found[0])
            aligned = align_statistics(adds.field("stats_parsed"), found[0])
            assert (rendered.lost, aligned.lost) == ((), ()), file
            assert render_statistics(aligned.values, found[0]).values.equals(rendered.values)
            for path, text in zip(
                adds.field("path").to_pylist(), rendered.values.to_pylist(), strict=True
            ):
                if text is not None and stats.get(path) is not None:
                    assert _members(text) == _members(stats[path]), (file, path)
                    tables.add(table)
                    structs_alone |= {table} - ({table} if "stats" in members else set())
    assert len(tables) >= 10
    assert len(structs_alone) >= 5
