"""Columns of data files as table columns, for cases that the row reader does not produce."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import UnsupportedFeatureError
from delta_maintenance.protocol.schema import (
    ArrayType,
    DecimalType,
    DeltaType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    UnknownType,
)
from delta_maintenance.protocol.schema.data_columns import StoredColumns, arrow_type, is_hybrid

LONG, TEXT = PrimitiveType(name="long"), PrimitiveType(name="string")
VARIANT = StructField(name="v", type=PrimitiveType(name="variant"), nullable=True)
STRUCT = StructType(
    fields=(
        StructField(name="x", type=LONG, nullable=True),
        StructField(name="new", type=TEXT, nullable=True),
    )
)
NESTED = MapType(
    key=TEXT, value=ArrayType(element=STRUCT, contains_null=True), value_contains_null=True
)
STORED = pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.int8()), ("old", pa.int8())])))

structs = st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "old": st.none()})
lists = st.none() | st.lists(structs, max_size=3)
maps = st.none() | st.dictionaries(st.sampled_from("abc"), lists, max_size=2).map(
    lambda value: list(value.items())
)


def expected(value: Any) -> Any:
    """The same text with `old` replaced by `new`."""
    if isinstance(value, dict):
        return {"x": value["x"], "new": None}
    if isinstance(value, tuple):
        return value[0], expected(value[1])
    return [expected(item) for item in value] if isinstance(value, list) else value


@given(st.lists(maps, max_size=8), st.data())
def test_nested_values_of_slices(rows: list[Any], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    count = data.draw(st.integers(0, len(rows) - start))
    stored = pa.array(rows, STORED).slice(start, count)
    column = StructField(name="c", type=NESTED, nullable=True)
    found = StoredColumns(mode="none").convert(column, stored, pa.field("c", STORED))
    found.validate(full=True)
    assert found.type == arrow_type(NESTED)
    assert found.to_pylist() == [expected(value) for value in rows[start : start + count]]


def test_all_primitive_types_can_be_read() -> None:
    assert arrow_type(DecimalType(precision=38, scale=9)) == pa.decimal128(38, 9)
    assert arrow_type(PrimitiveType(name="timestamp")) == pa.timestamp("us", tz="UTC")
    assert arrow_type(PrimitiveType(name="timestamp_ntz")) == pa.timestamp("us")


@pytest.mark.parametrize(
    "unreadable",
    [
        PrimitiveType(name="variant"),
        UnknownType(definition="geometry"),
        ArrayType(element=PrimitiveType(name="void"), contains_null=True),
        StructType(fields=(VARIANT,)),
    ],
    ids=str,
)
def test_other_types_are_refused(unreadable: DeltaType) -> None:
    with pytest.raises(UnsupportedFeatureError, match="cannot be read"):
        arrow_type(unreadable)


@pytest.mark.parametrize(
    ("version", "timestamps", "days"),
    [
        (b"2.4.0", True, True),
        (b"3.0.0", True, False),
        (b"3.1.0", False, False),
        (b"4", False, False),
    ],
)
def test_the_calendar_depends_on_the_writer(version: bytes, timestamps: bool, days: bool) -> None:
    said = {b"org.apache.spark.version": version}
    assert (is_hybrid(said, int96=True), is_hybrid(said, int96=False)) == (timestamps, days)
    assert not is_hybrid(None, int96=True)
