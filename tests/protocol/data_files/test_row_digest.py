"""The digest of rows: equal for equal rows in any order and layout, different for any other."""

from __future__ import annotations

import math
import random
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.data_files import row_digest
from delta_maintenance.protocol.data_files.row_digest import (
    LiveRowSums,
    RowDigest,
    RowSums,
    row_sums,
)

NESTED = pa.struct([("x", pa.list_(pa.map_(pa.string(), pa.int32()))), ("y", pa.string())])
SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("d", pa.decimal128(38, 3)),
        ("t", pa.bool_()),
        ("n", NESTED),
    ]
)
maps = st.none() | st.lists(
    st.tuples(st.text(max_size=2), st.none() | st.integers(0, 3)), max_size=2
)
nested = st.none() | st.fixed_dictionaries(
    {"x": st.none() | st.lists(maps, max_size=2), "y": st.none() | st.text(max_size=2)}
)
rows = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-2, 2),
        "b": st.none() | st.integers(-2, 2),
        "s": st.none() | st.text(max_size=150),
        "f": st.none() | st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf]),
        "d": st.none() | st.sampled_from([Decimal(10**34), Decimal("-0.001")]),
        "t": st.none() | st.booleans(),
        "n": nested,
    }
)


def batch(values: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(values, schema=SCHEMA)


def sums(found: pa.RecordBatch, schema: pa.Schema = SCHEMA) -> RowSums:
    return row_sums(RowDigest(schema).hashes(found))


def without_maps(values: pa.Array) -> pa.Array:
    """Returns values of `NESTED` as readers without maps have them."""
    entry = pa.struct([("key", pa.string()), ("value", pa.int32())])
    listed = pa.struct([("y", pa.string()), ("x", pa.large_list(pa.list_(entry)))])
    as_lists = [
        row
        and {
            "y": row["y"],
            "x": row["x"] and [m and [{"key": k, "value": v} for k, v in m] for m in row["x"]],
        }
        for row in values.to_pylist()
    ]
    return pa.array(as_lists, listed)


def text(row: dict[str, Any]) -> str:
    """Returns a text that distinguishes rows, including signs of zeros and bits of NaN."""
    number = row["f"]
    bits = None if number is None else struct.pack("<d", number)
    # Hypothesis draws the keys of equal rows in any order.
    nested = row["n"] and sorted(row["n"].items())
    return repr(sorted((row | {"f": bits, "n": nested}).items()))


@given(st.lists(rows, max_size=6), st.lists(rows, max_size=6), st.randoms())
@pytest.mark.conformance("RW-41")
def test_sums_are_equal_exactly_for_equal_multisets(
    one: list[Any], other: list[Any], rng: random.Random
) -> None:
    same = sorted(map(text, one)) == sorted(map(text, other))
    assert (sums(batch(one)) == sums(batch(other))) == same
    shuffled = rng.sample(one, len(one))
    assert sums(batch(one)) == sums(batch(shuffled))
    cut = rng.randint(0, len(one))
    assert sums(batch(one)) == sums(batch(one[:cut])) + sums(batch(one[cut:]))
    assert sums(batch(one)) - sums(batch(one[:cut])) == sums(batch(one[cut:]))
    # Only the rows of a slice count, not those after it.
    assert sums(batch([*other, *one]).slice(len(other))) == sums(batch(one))


@given(st.lists(rows, max_size=6))
def test_the_memory_layout_does_not_matter(values: list[Any]) -> None:
    found = batch(values)
    other = [
        found["a"],
        found["b"].dictionary_encode(),
        found["s"].dictionary_encode(),
        found["f"],
        found["d"],
        found["t"],
        found["n"],
    ]
    assert sums(pa.RecordBatch.from_arrays(other, names=SCHEMA.names)) == sums(found)
    for kind in (pa.large_string(), pa.string_view()):
        columns = [*found.columns[:2], found["s"].cast(kind), *found.columns[3:]]
        assert sums(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)) == sums(found)
    columns = [*found.columns[:-1], without_maps(found["n"])]
    assert sums(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)) == sums(found)


DIFFERENT: list[tuple[pa.DataType, Any, Any]] = [
    (pa.string(), None, ""),
    (pa.string(), "a", "a\0"),
    (pa.string(), "x" * 64, "x" * 65),
    (pa.string(), "ab" * 64, "ba" * 64),
    (pa.float64(), 0.0, -0.0),
    (pa.int64(), 0, None),
    (pa.list_(pa.int64()), [], None),
    (pa.list_(pa.int64()), [1, 2], [2, 1]),
    (pa.list_(pa.int64()), [0], [0, 0]),
    (pa.list_(pa.int64()), [None], []),
    (pa.struct([("x", pa.int64())]), {"x": None}, None),
    (pa.struct([("x", pa.int64()), ("y", pa.int64())]), {"x": 1, "y": 2}, {"x": 2, "y": 1}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]),
    (pa.decimal128(38, 0), Decimal(2**64), Decimal(0)),
    (pa.list_(pa.list_(pa.int64())), [[1], [2]], [[1, 2], []]),
]


@pytest.mark.parametrize(("kind", "one", "other"), DIFFERENT, ids=str)
def test_similar_values_are_distinguished(kind: pa.DataType, one: Any, other: Any) -> None:
    schema = pa.schema([("c", kind)])
    first, second = (
        sums(pa.RecordBatch.from_pylist([{"c": value}], schema=schema), schema)
        for value in (one, other)
    )
    assert first != second


def test_a_value_in_another_column_row_or_partition_counts() -> None:
    base = {name: None for name in SCHEMA.names}
    digest = RowDigest(SCHEMA)

    def of(*changes: dict[str, Any], partition: dict[str, str | None] | None = None) -> RowSums:
        found = batch([base | change for change in changes])
        return row_sums(digest.hashes(found, partition))

    assert of({"a": 1, "b": 2}) != of({"a": 2, "b": 1})
    assert of({"a": 1, "b": 1}, {"a": 2, "b": 2}) != of({"a": 1, "b": 2}, {"a": 2, "b": 1})
    # The sign bits of two numbers at once.
    low = -(2**63)
    assert of({"a": 0, "b": 0}) != of({"a": low, "b": low})
    assert of({}) != of({}, {})
    assert of({}, partition={"p": "1"}) != of({}, partition={"p": "01"})
    assert of({}, partition={"p": None}) != of({}, partition={"p": ""})
    assert of({}, partition={"p": "1"}) == of({}, partition={"p": "1"})


@given(st.lists(st.tuples(st.lists(rows, max_size=4), st.booleans(), st.data()), max_size=6))
def test_live_rows_are_counted_in_whatever_batches_they_come(
    found: list[tuple[list[dict[str, Any]], bool, st.DataObject]],
) -> None:
    live, partition = [], {"p": "1"}
    digest = RowDigest(SCHEMA)
    together = LiveRowSums(digest, partition)
    with pytest.MonkeyPatch.context() as patch:
        # Some batches are joined, others are not.
        patch.setattr(row_digest, "_JOINED", 5)
        for values, encoded, data in found:
            gone = data.draw(st.sets(st.integers(0, len(values) - 1))) if values else set()
            live += [row for at, row in enumerate(values) if at not in gone]
            rows = batch(values)
            if encoded:
                texts = rows.column("s").dictionary_encode()
                kind = SCHEMA.set(2, pa.field("s", texts.type))
                columns = [*rows.columns[:2], texts, *rows.columns[3:]]
                rows = pa.RecordBatch.from_arrays(columns, schema=kind)
            together.add(rows, np.array(sorted(gone), np.int64))
    assert together.total() == row_sums(digest.hashes(batch(live), partition))


def test_a_changed_bit_in_a_long_text_is_detected() -> None:
    schema = pa.schema([("c", pa.binary())])
    digest, data = RowDigest(schema), bytearray(random.Random(1).randbytes(150))
    seen = set()
    for at in range(len(data) * 8):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        found = pa.RecordBatch.from_pylist([{"c": bytes(changed)}], schema=schema)
        seen.add(int(digest.hashes(found)[0]))
    assert len(seen) == len(data) * 8


def test_the_digest_is_the_same_in_every_process_and_release() -> None:
    """Sums are kept in commits: a change of them takes another `VERSION`."""
    found = batch(
        [
            {"a": 1, "b": None, "s": "text", "f": -0.0, "d": Decimal("1.5"), "t": True, "n": None},
            {"a": 2, "n": {"x": [None, [("k", 1)]], "y": "z" * 100}},
        ]
    )
    assert str(sums(found)) == "v1:2:f048840cf93e7d31:ff1dd924e2616e3c"
