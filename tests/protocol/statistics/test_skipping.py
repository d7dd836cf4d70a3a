"""Files that the bounds exclude contain no row of a condition, with SQLite as the judge of SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delta_maintenance.protocol.schema import DecimalType, DeltaType, PrimitiveType
from delta_maintenance.protocol.schema.condition import parse_condition
from delta_maintenance.protocol.statistics.bounds import (
    ColumnBounds,
    FileBounds,
    ages,
    column_bounds,
    order_keys,
)
from delta_maintenance.protocol.statistics.skipping import files_read

LONG, STRING = PrimitiveType(name="long"), PrimitiveType(name="string")

NUMBERS = st.none() | st.integers(-3, 3)
WORDS = st.none() | st.sampled_from(["", "a", "ab", "b", "é", "it's"])
ROWS = st.lists(st.tuples(NUMBERS, WORDS), min_size=1, max_size=4)


def bounds(kind: DeltaType, arrow: pa.DataType, files: Sequence[Sequence[Any]]) -> ColumnBounds:
    def ends(choose: Callable[[Any], Any]) -> pa.Array:
        some = [[value for value in file if value is not None] for file in files]
        return pa.array([choose(values) if values else None for values in some], arrow)

    return column_bounds(
        kind,
        least=ends(min),
        greatest=ends(max),
        nulls=pa.array([sum(value is None for value in file) for file in files], pa.int64()),
        rows=np.array([len(file) for file in files]),
    )


def table(**columns: ColumnBounds) -> FileBounds:
    count = len(next(iter(columns.values())).least)
    return FileBounds(
        size=np.ones(count, np.int64),
        rows=np.ones(count, np.int64),
        partition=np.zeros(count, np.int64),
        columns={(name,): column for name, column in columns.items()},
    )


def read(condition: str, files: FileBounds) -> list[bool]:
    found: list[bool] = files_read(parse_condition(condition, lenient=True), files).tolist()
    return found


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth and draw(st.booleans()):
        left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        joined = f"{left} {draw(st.sampled_from(['AND', 'or']))} {right}"
        return f"{draw(st.sampled_from(['', 'NOT ']))}({joined})" if draw(st.booleans()) else joined
    column = draw(st.sampled_from(["n", "s"]))

    def value() -> str:
        if column == "n":
            return str(draw(st.integers(-3, 3)))
        return "'" + str(draw(WORDS.filter(lambda word: word is not None))).replace("'", "''") + "'"

    signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
    negated = draw(st.sampled_from(["", "not "]))
    match draw(st.sampled_from(["compare", "mirror", "in", "between", "null", "opaque", "like"])):
        case "compare":
            return f"{column} {draw(signs)} {value()}"
        case "mirror":
            return f"{value()} {draw(signs)} {column}"
        case "in":
            return f"{column} {negated}in ({value()}, {value()})"
        case "between":
            return f"{column} {negated}between {value()} and {value()}"
        case "like":
            return (
                f"s {negated}like '{draw(st.sampled_from(['a%', 'ab', '%', 'é%', '_b', 'b%%']))}'"
            )
        case "opaque":
            return f"{negated}length(s) + n = {draw(st.integers(0, 3))}"
    return f"{column} is {negated}null"


@given(st.lists(ROWS, min_size=1, max_size=4), conditions())
def test_no_file_with_a_row_of_the_condition_is_skipped(
    files: list[list[tuple[Any, Any]]], condition: str
) -> None:
    found = read(
        condition,
        table(
            n=bounds(LONG, pa.int64(), [[n for n, _ in file] for file in files]),
            s=bounds(STRING, pa.string(), [[s for _, s in file] for file in files]),
        ),
    )
    with sqlite3.connect(":memory:") as connection:
        connection.execute("pragma case_sensitive_like = on")
        connection.execute("create table t (file integer, n integer, s text)")
        rows = [(at, *row) for at, file in enumerate(files) for row in file]
        connection.executemany("insert into t values (?, ?, ?)", rows)
        selected = connection.execute(f"select distinct file from t where {condition}").fetchall()
    connection.close()
    assert all(found[at] for (at,) in selected)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n = 5", [True, False, False, True]),
        ("n <= 1", [True, False, False, True]),
        ("n < 1", [False, False, False, True]),
        ("n >= 20", [False, True, False, True]),
        ("n > 9", [False, True, False, True]),
        ("n not in (20, 21)", [True, True, False, True]),
        ("n in (10, 19)", [False, False, False, True]),
        ("n > 10", [False, True, False, True]),
        ("not n < 11", [False, True, False, True]),
        ("n <> 20", [True, False, False, True]),
        ("n in (1, 20)", [True, True, False, True]),
        ("n is null", [False, False, True, True]),
        ("n is not null", [True, True, False, True]),
        ("t.n = 5 and f(n) = 1", [True, False, False, True]),
        ("n = 5 or f(n) = 1", [True, True, True, True]),
        ("n <=> 5", [True, False, False, True]),
        ("unknown = 5", [True, True, True, True]),
        ("n = 'five'", [True, True, True, True]),
    ],
)
def test_the_bounds_of_a_column_exclude_files(condition: str, expected: list[bool]) -> None:
    # From 1 to 9, 20 only, only nulls, and without statistics.
    column = column_bounds(
        LONG,
        least=pa.array([1, 20, None, None], pa.int64()),
        greatest=pa.array([9, 20, None, None], pa.int64()),
        nulls=pa.array([0, 0, 3, None], pa.int64()),
        rows=np.array([9, 3, 3, -1]),
    )
    assert read(condition, table(n=column)) == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n = 5", [True, True, False]),
        ("n <=> 5", [True, True, False]),
        ("n in (4, 5)", [True, True, False]),
        ("n <> 5", [True, True, True]),
        ("n < 5", [False, True, False]),
        ("n > 15", [True, False, True]),
        ("n between 3 and 5", [True, True, False]),
        ("n >= 3 and n <= 5", [True, True, False]),
        ("n < 5 or n > 15", [True, True, True]),
        ("n < 5 and n = 3", [True, True, False]),
    ],
)
def test_a_single_bound_skips_only_for_conditions_on_that_bound(
    condition: str, expected: list[bool]
) -> None:
    # From 10 on, up to 9, and 20 only.
    column = column_bounds(
        LONG,
        least=pa.array([10, None, 20], pa.int64()),
        greatest=pa.array([None, 9, 20], pa.int64()),
        nulls=pa.array([0, 0, 0], pa.int64()),
        rows=np.array([9, 3, 3]),
    )
    assert read(condition, table(n=column)) == expected


@pytest.mark.parametrize(("is_indexed", "expected"), [(True, [True, True]), (False, [True, False])])
def test_only_columns_that_the_table_indexes_lack_bounds(
    is_indexed: bool, expected: list[bool]
) -> None:
    rows, nulls = np.array([3, 3]), pa.array([0, 0], pa.int64())
    ends = pa.array([1, 9], pa.int64())
    bounded = column_bounds(LONG, least=ends, greatest=ends, nulls=nulls, rows=rows)
    absent = pa.nulls(2, pa.int64())
    unbounded = column_bounds(
        LONG, least=absent, greatest=absent, nulls=nulls, rows=rows, is_indexed=is_indexed
    )
    assert read("n < 5 and m > 7", table(n=bounded, m=unbounded)) == expected


def test_bounds_are_as_wide_as_writers_may_have_cut_them() -> None:
    instant = PrimitiveType(name="timestamp")
    cut = datetime(2024, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    ends = pa.array([cut], pa.timestamp("us", "UTC"))
    rows, nulls = np.array([1]), pa.array([0])
    column = column_bounds(instant, least=ends, greatest=ends, nulls=nulls, rows=rows)
    assert read("t > '2024-01-01 00:00:00.123500'", table(t=column)) == [True]
    assert read("t > '2024-01-01 00:00:00.124'", table(t=column)) == [False]
    double = PrimitiveType(name="double")
    column = column_bounds(
        double, least=pa.array([1.0]), greatest=pa.array([float("nan")]), nulls=nulls, rows=rows
    )
    assert read("d > 1e300", table(d=column)) == [True]
    assert read("d < 0", table(d=column)) == [False]


@pytest.mark.conformance("STAT-03")
@pytest.mark.parametrize(
    ("zone", "day", "near"),
    [("UTC", "1972-01-07", True), ("UTC", "1972-01-08", False)] + [(None, "1850-01-01", False)],
)
def test_bounds_are_a_minute_wider_where_their_offset_can_have_been_cut(
    zone: str | None, day: str, near: bool
) -> None:
    """Of -00:44:30, Delta Spark states -00:44."""
    ends = pa.array([datetime.fromisoformat(day)], pa.timestamp("us")).view(
        pa.timestamp("us", zone)
    )
    name = "timestamp_ntz" if zone is None else "timestamp"
    column = column_bounds(
        PrimitiveType(name=name), least=ends, greatest=ends, nulls=pa.array([0]), rows=np.array([1])
    )
    before = datetime.fromisoformat(day) - timedelta(seconds=59)
    assert read(f"t <= '{before}'", table(t=column)) == [near]
    assert read(f"t >= '{day} 00:00:59'", table(t=column)) == [near]
    assert read(f"t >= '{day} 00:01:01'", table(t=column)) == [False]
    limit = int((before - datetime(1970, 1, 1)).total_seconds()) * 1_000_000 + 1
    found = ages(column, limit)
    # Rows of the file that are older than the limit are not overlooked.
    assert (found.mixed | found.unknown).tolist() == [near] and not found.whole.any()


@pytest.mark.parametrize(
    ("kind", "arrow", "values"),
    [
        (DecimalType(precision=18, scale=2), pa.decimal128(18, 2), ["-1.50", "0.01", "9" * 16]),
        (DecimalType(precision=38, scale=0), pa.decimal128(38, 0), ["-1", "9" * 37, "9" * 38]),
        (STRING, pa.string(), ["key-", "key-1", "key-10", "key-9\0", "key-9\0\0", "key-é"]),
        (STRING, pa.string(), ["a", "a" * 8, "a" * 9, "b"]),
        (STRING, pa.string(), ["", "a", "a\0", "ab", "é", "\U0010ffff"]),
        (PrimitiveType(name="float"), pa.float32(), [-1.5, 0.0, float("inf")]),
        (PrimitiveType(name="date"), pa.date32(), [-1, 0, 1]),
        (PrimitiveType(name="byte"), pa.int8(), [-128, 0, 127]),
    ],
)  # fmt: skip
def test_order_keys_have_the_order_of_the_values(
    kind: DeltaType, arrow: pa.DataType, values: list[Any]
) -> None:
    given_ones = [Decimal(each) for each in values] if pa.types.is_decimal(arrow) else values
    column = bounds(kind, arrow, [[None], *([each] for each in given_ones)])
    # With an offset, as in a slice of a batch.
    ascending = column.least.slice(1)
    [keys, reverse] = order_keys(ascending, ascending.take(pa.array(range(len(values))[::-1])))
    assert (np.diff(keys) > 0).all() and reverse.tolist() == keys.tolist()[::-1]


PIECES = st.sampled_from([b"\0", b"\xff", b"sevens!", b"seventh", b"same"]) | st.binary(max_size=9)
# Many with the same beginning, which differ at any place.
TEXTS = st.lists(PIECES, max_size=4).map(b"".join) | st.text("ab\0", min_size=6).map(str.encode)


@given(st.lists(TEXTS, min_size=1, max_size=60), st.sampled_from([1, 40]), st.integers(0, 3))
@example([b"", b"sevens!ab", b"sevens!bb"], 1, 0)
@example([b"sevens!1", b"sevens!2", b"t", b"twelves1", b"twelves2", b"u"], 1, 0)
def test_order_keys_of_texts_have_their_order(texts: list[bytes], times: int, offset: int) -> None:
    repeated = texts * times
    [keys] = order_keys(pa.array([b"before"] * offset + repeated, pa.binary()).slice(offset))
    by_text = dict(zip(repeated, keys.tolist(), strict=True))
    assert [by_text[text] for text in repeated] == keys.tolist()
    ascending = [by_text[text] for text in sorted(by_text)]
    assert ascending == sorted(set(ascending))
