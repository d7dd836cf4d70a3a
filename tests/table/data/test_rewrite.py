"""Bins of data files, rewritten: the same rows in the same order, with their row IDs."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from delta_maintenance.storage import MemoryStore
from tests.support.rewrites.data_files import ROW_ID, ROW_VERSION, field, parquet, put, source
from tests.support.rewrites.typed_bins import bins, prepared, rewritten, spec_of, stored


@given(bins())
@settings(max_examples=120)
@pytest.mark.conformance(
    "RW-08",
    "RW-09",
    "RW-20",
    "RW-21",
    "RW-26",
    "RT-15",
    "RT-16",
    "RT-17",
    "CDC-04",
    "DV-12",
    "SCHEMA-07",
)
def test_the_live_rows_come_out_in_order_with_their_ids(case: Any) -> None:
    fields, files = case
    store, spec = MemoryStore(), spec_of(*fields, tracked=True)
    sources, expected = prepared(store, case)
    names = [str(item["name"]) for item in fields]
    done = rewritten(store, sources, spec)
    assert not done.refused
    assert done.sums.rows == len(expected)
    if not expected:
        assert not done.outputs
        return
    found = stored(store, done)
    # NaN is not equal to itself; its text is.
    assert [repr(row) for row in found.to_pylist()] == [repr(row) for row in expected]
    assert found.schema.names == [*names, ROW_ID, ROW_VERSION]
    offset = 0
    for run, (table, deleted, _) in zip(done.runs, files, strict=True):
        live = table.num_rows - len(deleted)
        assert run.rows == live and (not live or run.offset == offset)
        offset += live
    stats = json.loads(done.outputs[0].stats)
    assert stats["numRecords"] == len(expected)


@pytest.mark.conformance("RW-13", "RW-14", "CONS-04")
def test_a_full_row_group_and_a_new_file_between_sources_lose_nothing() -> None:
    store = MemoryStore()
    sources = []
    for number in range(8):
        data = parquet(
            pa.table({"a": range(number * 1000, number * 1000 + 1000), "s": ["x" * 300] * 1000})
        )
        put(store, f"f{number}", data)
        sources.append(source(f"f{number}", data, rows=1000))
    spec = spec_of(field("a", "long"), field("s", "string"), group_bytes=1 << 19)
    done = rewritten(store, sources, spec)
    rows = stored(store, done)
    assert rows["a"].to_pylist() == list(range(8000))
    group = pq.read_metadata(io.BytesIO(store.read(done.outputs[0].name)))
    assert group.num_row_groups > 1
