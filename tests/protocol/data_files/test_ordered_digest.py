"""The digest of rows in their order: equal for equal rows in any layout, different for others."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.protocol.data_files import ordered_digest
from delta_maintenance.protocol.data_files.ordered_digest import OrderedDigest, OrderedSum
from tests.protocol.data_files.test_row_digest import (
    DIFFERENT,
    SCHEMA,
    batch,
    rows,
    text,
    without_maps,
)

NO_PARTITION: dict[str, str | None] = {}


def digest(*batches: pa.RecordBatch, schema: pa.Schema = SCHEMA) -> OrderedSum:
    found = OrderedDigest(schema, NO_PARTITION)
    for each in batches:
        found.add(each)
    return found.result(sum(each.num_rows for each in batches))


@given(st.lists(rows, max_size=6), st.lists(rows, max_size=6), st.randoms())
@pytest.mark.conformance("RW-41")
def test_digests_are_equal_exactly_for_equal_sequences(
    one: list[Any], other: list[Any], rng: random.Random
) -> None:
    assert (digest(batch(one)) == digest(batch(other))) == (
        list(map(text, one)) == list(map(text, other))
    )
    shuffled = rng.sample(one, len(one))
    same = list(map(text, shuffled)) == list(map(text, one))
    assert (digest(batch(shuffled)) == digest(batch(one))) == same


@given(st.lists(rows, max_size=9), st.lists(rows, max_size=8), st.data())
def test_batches_and_slices_do_not_matter(
    before: list[Any], values: list[Any], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))
    bounds = list(zip([0, *cuts], [*cuts, len(values)], strict=True))
    whole = batch([*before, *values]).slice(len(before))
    slices = [whole.slice(start, end - start) for start, end in bounds]
    parts = [batch(values[start:end]) for start, end in bounds]
    assert digest(*slices) == digest(*parts) == digest(batch(values))


@given(st.lists(rows, max_size=6), st.integers(1, 200), st.integers(1, 40))
def test_the_memory_layout_does_not_matter(values: list[Any], long: int, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Texts of the rows are long, and dictionaries are expanded in several pieces.
        patch.setattr(ordered_digest, "_LONG", long)
        patch.setattr(ordered_digest, "_PIECE", piece)
        found = batch(values)
        wanted = digest(found)
        encoded = [*found.columns]
        for at in (1, 2, 3):
            encoded[at] = encoded[at].dictionary_encode()
        assert digest(pa.RecordBatch.from_arrays(encoded, names=SCHEMA.names)) == wanted
        with_null = found["s"].dictionary_encode(null_encoding="encode")
        columns = [*found.columns[:2], with_null, *found.columns[3:]]
        assert digest(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)) == wanted
        for kind in (pa.large_string(), pa.string_view()):
            columns = [*found.columns[:2], found["s"].cast(kind), *found.columns[3:]]
            assert digest(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)) == wanted
        columns = [*found.columns[:-1], without_maps(found["n"])]
        assert digest(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)) == wanted


def test_the_bytes_under_nulls_do_not_matter() -> None:
    schema = pa.schema(
        [
            ("i", pa.int64()),
            ("s", pa.string()),
            ("l", pa.list_(pa.int64())),
            ("t", pa.struct([("x", pa.int64())])),
        ]
    )
    bits = pa.py_buffer(bytes([0b101]))
    number = pa.array([1, 2, 3])
    hidden = [
        pa.Array.from_buffers(pa.int64(), 3, [bits, number.buffers()[1]]),
        pa.Array.from_buffers(pa.string(), 3, [bits, *pa.array(["a", "bc", "d"]).buffers()[1:]]),
        pa.Array.from_buffers(
            pa.list_(pa.int64()),
            3,
            [bits, pa.array([0, 1, 3, 4], pa.int32()).buffers()[1]],
            children=[pa.array([1, 8, 9, 2])],
        ),
        pa.Array.from_buffers(pa.struct([("x", pa.int64())]), 3, [bits], children=[number]),
    ]
    shown = [
        pa.array([1, None, 3]),
        pa.array(["a", None, "d"]),
        pa.array([[1], None, [2]]),
        pa.array([{"x": 1}, None, {"x": 3}]),
    ]
    one, other = (pa.RecordBatch.from_arrays(each, schema=schema) for each in (hidden, shown))
    assert one.equals(other)
    assert digest(one, schema=schema) == digest(other, schema=schema)


def test_a_validity_buffer_without_nulls_does_not_matter() -> None:
    schema = pa.schema([("i", pa.int64())])
    full = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\xff"), pa.array([1, 2]).buffers()[1]]
    )
    one = pa.RecordBatch.from_arrays([full], schema=schema)
    other = pa.RecordBatch.from_arrays([pa.array([1, 2])], schema=schema)
    assert digest(one, schema=schema) == digest(other, schema=schema)


@pytest.mark.parametrize(("kind", "one", "other"), DIFFERENT, ids=str)
def test_similar_values_are_distinguished(kind: pa.DataType, one: Any, other: Any) -> None:
    schema = pa.schema([("c", kind)])
    first, second = (
        digest(pa.RecordBatch.from_pylist([{"c": value}], schema=schema), schema=schema)
        for value in (one, other)
    )
    assert first != second


MOVED: list[tuple[pa.DataType, list[Any], list[Any]]] = [
    (pa.int64(), [1, None], [None, 1]),
    (pa.string(), ["ab", "c"], ["a", "bc"]),
    (pa.string(), ["", "a"], ["a", ""]),
    (pa.string(), ["x" * 5000], ["x" * 4999 + "y"]),
    (pa.string(), ["x" * 5000, "a"], ["x" * 5000, "b"]),
    (pa.list_(pa.int64()), [[1], [2, 3]], [[1, 2], [3]]),
    (pa.list_(pa.int64()), [[1, None], []], [[1], [None]]),
    (pa.list_(pa.int64()), [None, []], [[], None]),
    (pa.struct([("x", pa.int64())]), [None, {"x": None}], [{"x": None}, None]),
    (pa.float64(), [0.0, -0.0], [-0.0, 0.0]),
    (pa.float64(), [math.nan], [math.inf]),
    (pa.decimal128(38, 0), [Decimal(1), Decimal(2**64)], [Decimal(2**64), Decimal(1)]),
    (pa.bool_(), [True, False], [False, True]),
]


@pytest.mark.parametrize(("kind", "one", "other"), MOVED, ids=str)
def test_moved_values_are_distinguished(
    kind: pa.DataType, one: list[Any], other: list[Any]
) -> None:
    schema = pa.schema([("c", kind)])
    found = [
        digest(pa.RecordBatch.from_arrays([pa.array(each, kind)], schema=schema), schema=schema)
        for each in (one, other)
    ]
    assert found[0] != found[1]


@settings(max_examples=20)
@given(st.lists(rows, min_size=1, max_size=4), st.data())
def test_every_changed_bit_of_a_buffer_is_detected(values: list[Any], data: st.DataObject) -> None:
    """Each bit that can be seen in a value changes the digest."""
    found = batch(values)
    at = data.draw(st.sampled_from([0, 1, 3, 4]), label="column")
    column = found.column(at)
    if column.null_count == len(column):
        return
    width = column.type.bit_width // 8
    row = next(row for row in range(len(column)) if column[row].is_valid)
    stored = bytearray(column.buffers()[1].to_pybytes())
    wanted = digest(found)
    seen = {wanted}
    for bit in range(row * width * 8, (row + 1) * width * 8):
        changed = bytearray(stored)
        changed[bit // 8] ^= 1 << bit % 8
        buffers = [column.buffers()[0], pa.py_buffer(bytes(changed))]
        other = pa.Array.from_buffers(column.type, len(column), buffers)
        columns = [*found.columns[:at], other, *found.columns[at + 1 :]]
        seen.add(digest(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)))
    assert len(seen) == 8 * width + 1


def test_names_types_and_partitions_count() -> None:
    found = []
    for name, kind in (("a", pa.int64()), ("b", pa.int64()), ("a", pa.timestamp("us"))):
        schema = pa.schema([(name, kind)])
        found.append(
            digest(pa.RecordBatch.from_arrays([pa.array([1], kind)], schema=schema), schema=schema)
        )
    for partition in ({"p": "1"}, {"p": "01"}, {"p": None}, {"p": ""}, {"q": "1"}):
        one = OrderedDigest(pa.schema([("a", pa.int64())]), partition)
        one.add(pa.record_batch([pa.array([1])], names=["a"]))
        found.append(one.result(1))
    assert len(set(found)) == len(found)


def test_a_column_with_fewer_values_is_an_error() -> None:
    found = OrderedDigest(pa.schema([("a", pa.int64()), ("b", pa.int64())]), NO_PARTITION)
    found.columns[0].add(pa.array([1]))
    with pytest.raises(pa.ArrowInvalid, match="b has 0 values instead of 1"):
        found.result(1)


def test_a_digest_says_which_it_is() -> None:
    one = digest(batch([]))
    assert str(one).startswith("v2:0:")
    assert str(one + one) == f"v2:0:{one.digest * 2 % (1 << 128):032x}"
