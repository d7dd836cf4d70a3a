"""Conditions on rows, compared with DuckDB, which orders NaN and null as Spark does."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.protocol.schema import (
    DecimalType,
    DeltaType,
    PrimitiveType,
    StructField,
    StructType,
)
from delta_maintenance.protocol.schema.condition import Both, Condition, Either, Not, Opaque
from delta_maintenance.protocol.schema.evaluation import RowCondition, evaluate

COLUMNS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "i": ("long", pa.int64(), [None, -1, 0, 1, 2]),
    "f": ("double", pa.float64(), [None, -0.0, math.nan, math.inf, 1.5]),
    "s": ("string", pa.string(), ["", "a", None, "ä", "z"]),
    "b": ("boolean", pa.bool_(), [True, False, None, True, False]),
    "d": ("date", pa.date32(), [date(1850, 1, 1), None, date(2026, 1, 1), date(9999, 1, 1), None]),
    "t": (
        "timestamp",
        pa.timestamp("us", "UTC"),
        [datetime(2026, 1, 1, 12, tzinfo=UTC), None, *[datetime(2026, 1, 2, tzinfo=UTC)] * 3],
    ),
    "m": ("decimal", pa.decimal128(5, 2), [None, *map(Decimal, ("-1.50", "0", "1.5", "2"))]),
}
COMPARED = {
    "i": ("1", "0", "-5"),
    "f": ("1.5", "'NaN'", "0.0"),
    "s": ("'a'", "''"),
    "b": ("true",),
    "d": ("'2026-01-01'",),
    "t": ("'2026-01-01 12:00:00'",),
    "m": ("1.50", "0"),
}


def rows() -> pa.Table:
    """One row for each value, and the struct `n` with a null between its fields."""
    columns = {name: pa.array(values, kind) for name, (_, kind, values) in COLUMNS.items()}
    nested = pa.array([{"x": 1}, None, {"x": None}, {"x": 2}, {"x": 1}])
    return pa.table({**columns, "n": nested})


def struct(**kinds: DeltaType) -> StructType:
    fields = (StructField(name=n, type=k, nullable=True, metadata={}) for n, k in kinds.items())
    return StructType(fields=tuple(fields))


def condition(text: str) -> RowCondition:
    flat = {
        name: DecimalType(precision=5, scale=2) if name == "m" else PrimitiveType(name=kind)
        for name, (kind, _, _) in COLUMNS.items()
    }
    return RowCondition(text, struct(**flat, n=struct(x=PrimitiveType(name="long"))))


CONDITIONS = [
    *(
        f"{name} {sign} {value}"
        for name, values in COMPARED.items()
        for value in values
        for sign in ("=", "<>", "<", "<=", ">", ">=")
    ),
    "NOT i = 1",
    "NOT (i = 1 OR f > 1)",
    "i IS NULL OR s = 'a'",
    "i IS NOT NULL AND f IS NOT NULL",
    "i IN (1, 2)",
    "NOT i IN (1, 2)",
    "i BETWEEN 0 AND 1",
    "n.x = 1",
    "n.x IS NULL",
    "NOT n.x = 1 AND b = true",
]


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_is_true_of_the_same_rows_as_in_duckdb(text: str) -> None:
    data = rows()
    columns = {name: data[name].combine_chunks() for name in data.column_names}
    found = condition(text).matching(columns)
    assert found.null_count == 0
    # DuckDB needs an extension for timestamps with a time zone.
    at = data.schema.get_field_index("t")
    plain = data.set_column(at, "t", data["t"].cast(pa.timestamp("us")))
    with duckdb.connect() as connection:
        connection.register("data", plain)
        (expected,) = zip(
            *connection.execute(f"SELECT coalesce({text}, false) FROM data").fetchall(), strict=True
        )
    assert found.to_pylist() == list(expected)


def test_no_null_satisfies_a_comparison_that_is_safe_for_null() -> None:
    data = {"i": rows()["i"].combine_chunks()}
    assert condition("i <=> 1").matching(data).to_pylist() == [False, False, False, True, False]
    assert condition("NOT i <=> 1").matching(data).to_pylist() == [True, True, True, False, True]


@pytest.mark.parametrize("text", ["x = 1", "i.x = 1", "i = 'a'", "s LIKE 'a%'", "i + 1 = 2"])
def test_other_conditions_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        condition(text)


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> Any:
    """A set of values of SQL that a part of a condition can have, or a sign and its operands."""
    if not depth or draw(st.booleans()):
        return draw(st.sampled_from([{True}, {False}, {None}, {True, False}]))
    operands = [draw(trees(depth - 1)) for _ in range(draw(st.integers(1, 2)))]
    return draw(st.sampled_from(["and", "or"])) if len(operands) == 2 else "not", *operands


@given(trees(), st.booleans())
def test_not_and_or_follow_three_valued_logic(tree: Any, partly: bool) -> None:
    leaves: list[set[bool | None]] = []

    def build(node: Any) -> Condition:
        if isinstance(node, set):
            leaves.append(node)
            return Opaque(str(len(leaves) - 1))
        sign, *operands = node
        parts = map(build, operands)
        return Not(*parts) if sign == "not" else (Both if sign == "and" else Either)(*parts)

    def compute(node: Any) -> set[bool | None]:
        """Every value that the condition has if its parts have any of theirs."""
        if isinstance(node, set):
            return node
        sign, *operands = node
        values = set(itertools.product(*map(compute, operands)))
        if sign == "not":
            return {None if value is None else not value for (value,) in values}
        return {join(sign, *pair) for pair in values}

    def join(sign: str, left: bool | None, right: bool | None) -> bool | None:
        decisive = sign == "or"
        if decisive in (left, right):
            return decisive
        if None not in (left, right):
            return not decisive
        return (right if left is None else left) if partly else None

    def answer(part: Condition) -> tuple[Any, Any]:
        assert isinstance(part, Opaque)
        values = leaves[int(part.text)]
        return np.array([True in values]), np.array([False in values])

    true, false = evaluate(build(tree), answer, partly=partly)
    assert (true[0], false[0]) == (True in (values := compute(tree)), False in values)
