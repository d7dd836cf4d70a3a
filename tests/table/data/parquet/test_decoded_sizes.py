"""Bounds of decoded rows: no rows of any file take more than the bound says."""

from __future__ import annotations

import io
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import RefusedError
from delta_maintenance.table.data import parquet_input, row_batches
from delta_maintenance.table.data.parquet import decoded_sizes, pages
from delta_maintenance.table.data.parquet.decoded_sizes import (
    Leaf,
    LeafSizes,
    leaf_sizes,
    rows_together,
)
from delta_maintenance.table.data.parquet.pages import delta_integers, pages_of, rows_of
from delta_maintenance.table.data.parquet_input import ParquetInput

TEXT_ENCODINGS = ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", None]
texts = st.builds(lambda text, times: text * times, st.text("ab", max_size=3), st.integers(0, 900))


def sizes_of(data: bytes, **options: bool) -> LeafSizes:
    with ParquetInput(data) as parquet:
        [(column, chunk)] = parquet._chunks(0, parquet.schema.names)
        leaf = Leaf(column, chunk, parquet.rows)
        return leaf_sizes(leaf, parquet._stored_chunk(chunk, 1), **options)


def written(rows: pa.Array, encoding: str | None, **options: Any) -> bytes:
    leaf = "c.list.element" if pa.types.is_list(rows.type) else "c"
    encoded = {} if encoding is None else {"column_encoding": {leaf: encoding}}
    sink = io.BytesIO()
    table = pa.table({"c": rows})
    pq.write_table(table, sink, use_dictionary=encoding is None, **encoded, **options)
    return sink.getvalue()


@given(
    rows=st.lists(st.none() | texts, min_size=1, max_size=60)
    | st.lists(st.none() | st.lists(st.none() | texts, max_size=9), min_size=1, max_size=60),
    encoding=st.sampled_from(TEXT_ENCODINGS),
    page=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "zstd", "snappy"]),
    together=st.integers(1, 70),
)
@settings(max_examples=150)
def test_no_rows_are_larger_than_their_bound(
    rows: list[Any], encoding: str | None, page: str, codec: str, together: int
) -> None:
    nested = any(isinstance(row, list) for row in rows)
    array = pa.array(rows, pa.list_(pa.string()) if nested else pa.string())
    data = written(
        array,
        encoding,
        data_page_version=page,
        compression=codec,
        data_page_size=64,
        write_batch_size=3,
        dictionary_pagesize_limit=4096,
    )
    found = [sum(map(len, filter(None, row or [])) if nested else [len(row or "")]) for row in rows]
    largest = max(sum(found[at : at + together]) for at in range(len(found)))
    rough, exact = sizes_of(data), sizes_of(data, exact=True)
    entries = sizes_of(data, exact_dictionary=True)
    assert largest <= exact.within(together) <= entries.within(together) + 1e-6
    assert entries.within(together) <= rough.within(together) + 1e-6
    # Exact bounds also tell apart rows of different sizes, apart from pages of one dictionary.
    if encoding is not None and not nested:
        # Texts that share prefixes are held twice.
        copies = 1 + (encoding == "DELTA_BYTE_ARRAY")
        assert exact.within(1) <= copies * max(found) + 8


@given(lengths=st.lists(st.integers(0, 900), min_size=1, max_size=60), room=st.integers(0, 60_000))
@settings(max_examples=100)
def test_rows_that_are_decoded_together_fit(lengths: list[int], room: int) -> None:
    rows = pa.array(["x" * length for length in lengths])
    data = written(rows, "PLAIN", data_page_size=64, write_batch_size=3)
    with patch.object(decoded_sizes, "_SMALL", 0):
        sizes = sizes_of(data, exact=True)
    shape = {"rows": len(rows), "most_rows": 64, "likely": 1 << 30}
    together = rows_together([sizes] * 2, **shape, max_bytes=room)
    assert not together or 2 * (sizes.held + sizes.within(together)) <= room
    # All rows are decoded together if they fit, and no fewer than half as many as could be.
    assert together == 64 or 2 * (sizes.held + sizes.within(max(1, 2 * together))) > room


@given(
    rows=st.lists(st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=4), max_size=99),
    page=st.sampled_from(["1.0", "2.0"]),
)
@settings(max_examples=50)
def test_levels_tell_the_values_of_a_row(rows: list[Any], page: str) -> None:
    table = pa.table({"c": pa.array(rows, pa.list_(pa.list_(pa.int64())))})
    sink = io.BytesIO()
    pq.write_table(table, sink, data_page_version=page, data_page_size=16, write_batch_size=5)
    most = max((sum(max(1, len(part)) for part in row) or 1 for row in rows), default=0)
    with patch.object(decoded_sizes, "_SMALL", 0):
        found = sizes_of(sink.getvalue(), exact=True)
    # Each value has 8 bytes and its levels. A row may be in several pages.
    assert most * 16 <= found.within(1) <= 2 * most * 16


@pytest.mark.parametrize(
    ("rows", "most"),
    # The second row is in all three pages, as PyArrow before 22 writes them.
    [(1, 40 + 16 + 8), (2, 80 + 16 + 8)],
)
def test_a_row_in_several_pages_is_as_large_as_its_parts(rows: int, most: int) -> None:
    sizes = LeafSizes(
        first=np.array([0, 1, 1]),
        last=np.array([1, 1, 1]),
        total=np.array([80.0, 16.0, 8.0]),
        most=np.array([40.0, 16.0, 8.0]),
        expected=104.0,
        held=0,
        dictionary=0,
        entry=0,
        encodings=frozenset(),
        is_rough=False,
    )
    assert sizes.within(rows) == most


def test_texts_beside_a_dictionary_are_not_decompressed_for_their_lengths() -> None:
    rows = pa.array([f"{row:05}" * 200 for row in range(5_000)])
    data = written(rows, None, compression="snappy")
    with (
        patch.object(pages, "_decompress_body", wraps=pages._decompress_body) as decompress,
        ParquetInput(data) as parquet,
    ):
        [batch] = parquet.batches(["c"])
    assert batch.column(0).equals(rows)
    assert decompress.call_count == 1


def test_long_runs_of_levels_are_not_unpacked() -> None:
    count = 1 << 38
    head = [count << 1 >> shift & 127 | 128 for shift in range(0, 42, 7)]
    found = rows_of(memoryview(bytes([*head[:-1], head[-1] & 127, 1])), count, max_level=1)
    assert (found.begun, found.continues, found.longest) == (0, True, count)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=300))
@settings(max_examples=50)
def test_lengths_are_decoded(numbers: list[int]) -> None:
    table = pa.table({"c": pa.array(numbers, pa.int64())})
    schema = pa.schema([pa.field("c", pa.int64(), nullable=False)])
    sink = io.BytesIO()
    pq.write_table(
        table.cast(schema),
        sink,
        use_dictionary=False,
        column_encoding={"c": "DELTA_BINARY_PACKED"},
        compression="none",
        write_statistics=False,
    )
    if not numbers:
        return
    with ParquetInput(sink.getvalue()) as parquet:
        [(_, chunk)] = parquet._chunks(0, ["c"])
        stored = parquet._stored_chunk(chunk, 1)
        [page] = pages_of(stored, values=chunk.num_values)
        _, body = page.body(stored, chunk.compression)
    found, end = delta_integers(body)
    assert found.tolist() == numbers and end == len(body)


@pytest.mark.conformance("RW-15", "RW-43")
@pytest.mark.parametrize("encoding", TEXT_ENCODINGS)
def test_skewed_rows_are_divided_and_larger_ones_refused(
    encoding: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = ["x" * 3000, "y" * 5000]
    rows = pa.array([*map(str, range(500)), *long * 100, *map(str, range(500))])
    data = written(rows, encoding, data_page_size=100)
    monkeypatch.setattr(row_batches, "BATCH_BYTES", 1 << 14)
    with ParquetInput(data) as parquet:
        batches = list(parquet.batches(["c"]))
    assert pa.Table.from_batches(batches)["c"].combine_chunks().equals(rows)
    assert max(batch.nbytes for batch in batches) <= 1 << 15
    monkeypatch.setattr(decoded_sizes, "MOST_ROW", 4000)
    monkeypatch.setattr(row_batches, "BATCH_BYTES", 1)
    with ParquetInput(data) as parquet, pytest.raises(RefusedError, match="a row of the data file"):
        list(parquet.batches(["c"]))


@pytest.mark.conformance("RW-43")
def test_long_texts_of_a_dictionary_are_expanded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.array(["x" * 3000, *map(str, range(900)), *["y" * 5000] * 100])
    data = written(rows, None)
    expanded: list[int] = []

    def expand(batch: pa.RecordBatch, columns: Any) -> pa.RecordBatch:
        plain = row_batches.expand_texts(batch, columns)
        expanded.append(plain.nbytes - 4 * plain.num_rows)
        return plain

    monkeypatch.setattr(row_batches, "BATCH_BYTES", 1 << 14)
    monkeypatch.setattr(parquet_input, "expand_texts", expand)
    with ParquetInput(data) as parquet:
        batches = list(parquet.batches(["c"]))
    assert pa.Table.from_batches(batches)["c"].combine_chunks().equals(rows)
    assert sum(expanded) >= 500_000 and max(expanded) <= 1 << 15
