"""Polars and Arrow return the same bits for the columns that Polars is given."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.parquet import polars_decoder
from delta_maintenance.protocol.data_files.ordered_digest import OrderedDigest, OrderedSum
from delta_maintenance.table.data.parquet_input import ParquetInput

_EXACT = Context(prec=38)
NANS = [
    struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8 << 48, 0xFFF80001 << 32)
]
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "byte": (pa.int8(), st.integers(-128, 127)),
    "short": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats() | st.sampled_from([-0.0, *NANS, math.inf])),
    "date": (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    "instant": (pa.timestamp("us", "UTC"), st.integers(-(2**63), 2**63 - 1)),
    "local": (pa.timestamp("us"), st.integers(-(2**63), 2**63 - 1)),
    "text": (pa.string(), st.text(max_size=40)),
    "binary": (pa.binary(), st.binary(max_size=40)),
    "small": (pa.decimal128(9, 2), st.integers(1 - 10**9, 10**9 - 1)),
    "middle": (pa.decimal128(18, 0), st.integers(1 - 10**18, 10**18 - 1)),
    "large": (pa.decimal128(38, 10), st.integers(1 - 10**38, 10**38 - 1)),
}


NESTED = pa.struct([("x", pa.list_(pa.int64())), ("y", pa.string())])


@pytest.fixture(autouse=True)
def _from_the_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polars_decoder, "WORTHWHILE_BYTES", 0)


def array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_temporal(kind):
        stored = pa.int64() if kind.bit_width == 64 else pa.int32()
        return pa.array(values, stored).view(kind)
    if pa.types.is_decimal(kind):
        values = [None if v is None else Decimal(v).scaleb(-kind.scale, _EXACT) for v in values]
    return pa.array(values, kind)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 12))
    columns = {}
    for name, (kind, values) in VALUES.items():
        few = st.lists(values, min_size=1, max_size=3).flatmap(st.sampled_from)
        items = draw(st.sampled_from([st.none() | values, values, few, st.none()]))
        columns[name] = array(kind, draw(st.lists(items, min_size=rows, max_size=rows)))
        if name == "short":
            # Its leaves change the numbers of those of the following columns.
            columns["nested"] = pa.array([{"x": [1], "y": "a"}] * rows, NESTED)
    return pa.table(columns)


def digest(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> OrderedSum:
    found, rows = OrderedDigest(schema, {}), 0
    for batch in batches:
        found.add(batch)
        rows += batch.num_rows
    return found.result(rows)


def written(table: pa.Table, **options: Any) -> bytes:
    data = io.BytesIO()
    pq.write_table(table, data, **options)
    return data.getvalue()


OPTIONS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "zstd", "gzip"]),
        "use_dictionary": st.booleans() | st.just(["text", "long", "large"]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([1, 1 << 20]),
        "write_page_checksum": st.booleans(),
        "store_decimal_as_integer": st.booleans(),
        "store_schema": st.booleans(),
        "write_batch_size": st.sampled_from([1, 1024]),
        "row_group_size": st.sampled_from([5, 1024]),
    }
)


@given(tables(), OPTIONS)
def test_both_decoders_return_the_same_bits(table: pa.Table, options: dict[str, Any]) -> None:
    data = written(table, **options)
    names = table.schema.names
    with ParquetInput(data) as parquet:
        for group in range(parquet.row_groups):
            assert sorted(parquet._by_polars(group, names)) == sorted(VALUES)
        assert digest(parquet.batches(names), table.schema) == digest(
            iter(table.to_batches()), table.schema
        )
    # Slices, beside columns that Arrow decodes as dictionaries.
    with (
        pytest.MonkeyPatch.context() as patch,
        ParquetInput(data, dictionaries=["text"]) as parquet,
    ):
        patch.setattr("delta_maintenance.table.data.parquet_input.ROWS", 5)
        assert digest(parquet.batches(names), table.schema) == digest(
            iter(table.to_batches()), table.schema
        )


LEFT_TO_ARROW: dict[str, Callable[[], tuple[pa.Table, dict[str, Any]]]] = {
    "INT96": lambda: (
        pa.table({"c": array(pa.timestamp("us"), [0, 1])}),
        {"use_deprecated_int96_timestamps": True},
    ),
    "milliseconds": lambda: (pa.table({"c": pa.array([0, 1], pa.timestamp("ms"))}), {}),
    "unsigned": lambda: (pa.table({"c": pa.array([0, 2**32 - 1], pa.uint32())}), {}),
    "list": lambda: (pa.table({"c": [[1], None]}), {}),
    "struct": lambda: (pa.table({"c": [{"x": 1}, None]}), {}),
    "map": lambda: (pa.table({"c": pa.array([[("a", 1)], None], pa.map_("string", "int64"))}), {}),
    "time": lambda: (pa.table({"c": pa.array([0, 1], pa.time64("us"))}), {}),
    "delta": lambda: (
        pa.table({"c": [0, 1]}),
        {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
    ),
    "split": lambda: (
        pa.table({"c": [0.0, 1.0]}),
        {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    ),
    "brotli": lambda: (pa.table({"c": [0, 1]}), {"compression": "brotli"}),
    "null": lambda: (pa.table({"c": pa.nulls(2)}), {}),
    "half": lambda: (pa.table({"c": pa.array([0.5, 1.0], pa.float16())}), {}),
    "dictionary": lambda: (pa.table({"c": pa.array(["a", "b"]).dictionary_encode()}), {}),
}


@pytest.mark.parametrize("name", LEFT_TO_ARROW)
def test_other_columns_are_left_to_arrow(name: str) -> None:
    table, options = LEFT_TO_ARROW[name]()
    with ParquetInput(written(table, **options)) as parquet:
        assert parquet._by_polars(0, ["c"]) == {}
        assert [batch.num_rows for batch in parquet.batches(["c"])] == [2]


@pytest.mark.parametrize("name", ["*", "^a.*$", "a.b", "^", "col*"])
def test_names_that_polars_would_interpret_are_left_to_arrow(name: str) -> None:
    table = pa.table({name: [1, 2], "other": [3, 4]})
    with ParquetInput(written(table)) as parquet:
        assert sorted(parquet._by_polars(0, table.schema.names)) == ["other"]
        assert parquet_rows(parquet, table.schema.names) == table.to_pylist()


def parquet_rows(parquet: ParquetInput, names: list[str]) -> list[Any]:
    return [row for batch in parquet.batches(names) for row in batch.to_pylist()]


def test_a_page_with_a_wrong_checksum_is_left_to_arrow_which_refuses_it() -> None:
    data = bytearray(
        written(
            pa.table({"c": list(range(100))}),
            write_page_checksum=True,
            compression="none",
            use_dictionary=False,
        )
    )
    data[400] ^= 1
    with ParquetInput(bytes(data)) as parquet:
        assert parquet._by_polars(0, ["c"]) == {}
        with pytest.raises((OSError, CorruptTableError), match="CRC|checksum"):
            list(parquet.batches(["c"]))


def test_invalid_utf8_is_read_by_arrow_as_it_is() -> None:
    broken = pa.array([b"\xff\xfe", b"a"]).cast(pa.binary())
    table = pa.table({"c": pa.Array.from_buffers(pa.string(), 2, broken.buffers())})
    with ParquetInput(written(table, use_dictionary=False)) as parquet:
        found = list(parquet.batches(["c"]))
        assert found[0].column(0).cast(pa.binary()).to_pylist() == [b"\xff\xfe", b"a"]


@pytest.mark.parametrize("fault", ["another value", "another type", "an error", "a panic"])
def test_a_version_that_reads_otherwise_is_not_used(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Panic(BaseException):
        pass

    original = polars_decoder._array

    def array(values: Any, kind: pa.DataType) -> pa.Array:
        if fault == "a panic":
            raise Panic
        if fault == "an error":
            raise ValueError("cannot")
        if fault == "another type" and pa.types.is_date(kind):
            return original(values, kind).view(pa.int32())
        found = original(values, kind)
        # As if signs of zeros were lost.
        return (
            pa.array([None if v is None else v + 0.0 for v in found.to_pylist()], kind)
            if pa.types.is_float64(kind)
            else found
        )

    polars_decoder._passes.cache_clear()
    monkeypatch.setattr(polars_decoder, "_array", array)
    try:
        assert not polars_decoder.is_worthwhile(1)
        assert "is not used" in caplog.text
        with ParquetInput(written(pa.table({"c": [-0.0]}))) as parquet:
            assert parquet._by_polars(0, ["c"]) == {}
    finally:
        polars_decoder._passes.cache_clear()


def test_polars_is_loaded_only_for_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polars_decoder, "WORTHWHILE_BYTES", 100)
    monkeypatch.setattr(polars_decoder, "_decoded", 0)
    assert [polars_decoder.is_worthwhile(50) for _ in range(3)] == [False, True, True]


def test_a_decoded_row_group_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of Parquet can stand for many rows."""
    table = pa.table({"c": pa.array([None] * 1_000_000, pa.int64())})
    data = written(table)
    assert len(data) < 100_000
    with ParquetInput(data) as parquet:
        assert sorted(parquet._by_polars(0, ["c"])) == ["c"]
        monkeypatch.setattr("delta_maintenance.table.data.parquet_input._AT_ONCE", 1 << 20)
        assert parquet._by_polars(0, ["c"]) == {}


def test_arrow_decodes_what_does_not_fit_beside_the_columns_of_polars() -> None:
    rows = 1_000_000
    offsets = pa.array([0, *range(1_050_000, 1_050_000 + rows)], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array(range(1_050_000 + rows - 1)))
    table = pa.table({"c": pa.array(range(rows)), "l": lists})
    data = written(table, compression="zstd", use_dictionary=False, row_group_size=rows)
    with ParquetInput(data, reading_bytes=26_500_000) as parquet:
        assert sorted(parquet._by_polars(0, ["c", "l"])) == ["c"]
        with pytest.raises(RefusedError):
            parquet._decoding(0, ["l"], held=rows * 8)
        assert pa.Table.from_batches(parquet.batches(["c", "l"])).equals(table)
