"""Conditions over partition columns, with SQLite as the judge of SQL."""

from __future__ import annotations

import sqlite3
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.protocol.schema import DecimalType, PrimitiveType
from delta_maintenance.protocol.schema.evaluation import partition_filter

TYPES = {"n": PrimitiveType(name="long"), "s": PrimitiveType(name="string")}
numbers = st.integers(-3, 3)
words = st.sampled_from(["a", "b", "it's", "é"])
rows = st.lists(st.tuples(st.none() | numbers, st.none() | words), min_size=1, max_size=6)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth and draw(st.booleans()):
        left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        joined = f"{left} {draw(st.sampled_from(['AND', 'or']))} {right}"
        return f"{draw(st.sampled_from(['', 'NOT ']))}({joined})" if draw(st.booleans()) else joined
    column = draw(st.sampled_from(["n", "s"]))

    def value() -> str:
        if column == "n":
            return str(draw(numbers))
        return "'" + draw(words).replace("'", "''") + "'"

    kind = draw(st.sampled_from(["compare", "in", "between", "null"]))
    negated = draw(st.sampled_from(["", "not "]))
    if kind == "compare":
        return f"{column} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {value()}"
    if kind == "in":
        return f"{column} {negated}in ({value()}, {value()})"
    if kind == "between":
        return f"{column} {negated}between {value()} and {value()}"
    return f"{column} is {negated}null"


@given(rows, conditions())
def test_conditions_have_the_semantics_of_sql(values: list[Any], condition: str) -> None:
    strings = {
        "n": pa.array([None if n is None else str(n) for n, _ in values], pa.string()),
        "s": pa.array([s for _, s in values], pa.string()),
    }
    with sqlite3.connect(":memory:") as connection:
        connection.execute("create table t (at integer, n integer, s text)")
        connection.executemany(
            "insert into t values (?, ?, ?)", [(at, *row) for at, row in enumerate(values)]
        )
        found = connection.execute(f"select at from t where {condition} order by at").fetchall()
    connection.close()
    kept = partition_filter(condition, strings, TYPES).tolist()
    assert [at for at, yes in enumerate(kept) if yes] == [at for (at,) in found]


@pytest.mark.conformance("PART-02", "PART-04", "PART-05")
def test_values_are_compared_by_their_types_not_by_their_text() -> None:
    types = {
        "d": PrimitiveType(name="date"),
        "t": PrimitiveType(name="timestamp"),
        "x": DecimalType(precision=5, scale=2),
    }
    strings = {
        "d": pa.array(["2024-1-9", "2024-01-10", None]),
        "t": pa.array(["2024-01-01 10:00:00", "2024-01-01T10:00:00.000000Z", ""]),
        "x": pa.array(["9", "10.50", "-1"]),
    }

    def kept(condition: str) -> list[bool]:
        found: list[bool] = partition_filter(condition, strings, types).tolist()
        return found

    assert kept("D < '2024-01-10'") == [True, False, False]
    assert kept("d >= date '2024-01-09'") == [True, True, False]
    assert kept("`t` = '2024-01-01T12:00:00+02:00'") == [True, True, False]
    assert kept("t >= '2024-01-02'") == [False, False, False]
    assert kept("t < '2024-01-02' and t > date '2024-1-1'") == [True, True, False]
    assert kept("x > 9.5") == [False, True, False]
    assert kept("t is null and not d is not null") == [False, False, True]


def test_no_number_equals_itself_and_is_greater_than_any_other() -> None:
    strings, types = {"x": pa.array(["NaN", "1.5", None])}, {"x": PrimitiveType(name="double")}
    assert partition_filter("x = 'NaN'", strings, types).tolist() == [True, False, False]
    assert partition_filter("x > 1000", strings, types).tolist() == [True, False, False]
    assert partition_filter("not x > 1000", strings, types).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("", "missing"),
        ("n", "comparison is missing"),
        ("n = ", "missing at its end"),
        ("n = 1 and", "missing"),
        ("n = 'x'", "is not a long"),
        ("other = 1", "is not a partition column; the partition columns are: n, s"),
        ("n = 1 n = 2", "not expected"),
        ("(n = 1", "')' is missing"),
        ("n = 1; drop", "cannot be read"),
        ("n in 1", "'(' is missing"),
        ("n = s", "is not a value"),
        ("(" * 99 + "n = 1" + ")" * 99, "nested"),
    ],
)
def test_an_invalid_condition_is_one_line(condition: str, problem: str) -> None:
    strings = {"n": pa.array(["1"]), "s": pa.array(["a"])}
    with pytest.raises(InvalidRequestError) as raised:
        partition_filter(condition, strings, TYPES)
    assert problem in str(raised.value) and len(str(raised.value)) < 1000
