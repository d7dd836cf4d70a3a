"""Bins with some copied row groups: rows, row IDs and statistics are those of decoding."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.protocol.actions import DeletionVectorDescriptor
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data import data_file_reader
from delta_maintenance.table.data.carried_deletions import late_deletions, without_rows
from delta_maintenance.table.data.copying import copied_bin
from delta_maintenance.table.data.parquet import footers
from delta_maintenance.table.data.parquet.thrift import read_struct, struct_bytes
from tests.support.rewrites.data_files import ROW_ID, ROW_VERSION, inline_vector, parquet
from tests.support.rewrites.mixed_sources import (
    BIG,
    LEAST,
    SMALL,
    Given,
    content,
    expected,
    groups_of,
    outputs,
    rewritten,
    rewritten_files,
    sources,
    spec_of,
    stored,
)


@settings(max_examples=150, deadline=None)
@given(
    files=st.lists(sources(), min_size=1, max_size=4),
    tracked=st.booleans(),
    target=st.sampled_from([4000, 1 << 20]),
    proof=st.sampled_from(["rows", "rows", "counts"]),
)
@pytest.mark.conformance("RW-25", "RW-29", "RT-15")
def test_each_source_keeps_its_rows_in_their_order_and_their_row_ids(
    files: list[Given], tracked: bool, target: int, proof: Any
) -> None:
    if not tracked:
        files = [replace(file, ids="no") for file in files]
    store = MemoryStore()
    done = rewritten(store, files, spec_of(tracked=tracked, target_bytes=target, proof=proof))
    assert not done.refused
    tables = outputs(store, done)
    lengths = [0] * len(tables)
    for number, (file, run) in enumerate(zip(files, done.runs, strict=True)):
        wanted = expected(file, number, tracked=tracked)
        assert (run.source, run.rows) == (number, len(wanted))
        if wanted:
            found = tables[run.output].slice(run.offset, run.rows)
            assert [repr(row) for row in found.to_pylist()] == wanted
            lengths[run.output] += run.rows
    assert lengths == [table.num_rows for table in tables]
    assert 0 not in lengths
    decoding = spec_of(tracked=tracked, target_bytes=target, copied_group_bytes=None)
    decoded = rewritten(MemoryStore(), files, decoding)
    assert not decoded.copied
    if len(done.outputs) == len(decoded.outputs) == 1:
        assert json.loads(done.outputs[0].stats) == json.loads(decoded.outputs[0].stats)


@pytest.mark.conformance("RW-25")
def test_small_files_are_encoded_into_one_row_group_behind_the_copied_ones() -> None:
    store = MemoryStore()
    files = [SMALL, BIG, replace(SMALL, seed=3), replace(BIG, seed=4)]
    done = rewritten(store, files, spec_of(tracked=False))
    assert done.copied
    assert groups_of(store, done) == [100] * 8 + [60]
    assert [run.offset for run in done.runs] == [800, 0, 830, 400]


def test_small_files_of_a_slow_store_are_read_ahead_and_once() -> None:
    class Slow(MemoryStore):
        is_near = False

        def read_head(self, path: str, size: int) -> bytes:
            fetched.append((path, threading.current_thread() is threading.main_thread()))
            return super().read_head(path, size)

    fetched: list[tuple[str, bool]] = []
    store = Slow()
    small = [replace(SMALL, seed=seed) for seed in range(7)]
    done = rewritten(store, [BIG, *small], spec_of(tracked=False))
    assert done.copied
    assert sorted(fetched) == [(f"f{at}", False) for at in range(1, 8)]


@pytest.mark.conformance("RW-25")
def test_decoded_files_that_fill_a_row_group_keep_their_place() -> None:
    store = MemoryStore()
    files = [BIG, replace(BIG, form="other"), replace(BIG, seed=4), SMALL]
    done = rewritten(store, files, spec_of(tracked=False))
    assert groups_of(store, done) == [100] * 4 + [200] * 2 + [100] * 4 + [30]
    assert [run.offset for run in done.runs] == [0, 400, 800, 1200]


@pytest.mark.conformance("RW-25")
def test_only_row_groups_with_deleted_rows_are_decoded() -> None:
    store = MemoryStore()
    deleted = frozenset({100, 150, *range(300, 400)})
    done = rewritten(store, [replace(BIG, deleted=deleted)], spec_of(tracked=True))
    assert done.copied
    assert groups_of(store, done) == [100, 98, 100]


def test_a_row_group_without_live_rows_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    original = data_file_reader.DataFileReader.read

    def spied(self: Any, file: Any, **options: Any) -> Iterator[Any]:
        read.append(options["groups"])
        return original(self, file, **options)

    monkeypatch.setattr(data_file_reader.DataFileReader, "read", spied)
    gone = replace(BIG, deleted=frozenset(range(100, 201)))
    assert rewritten(MemoryStore(), [gone], spec_of(tracked=False)).copied
    assert [groups for groups in read if groups] == [[2]]


@pytest.mark.conformance("RW-25", "RT-15")
@pytest.mark.parametrize("ids", ["no", "some", "all"])
def test_row_ids_are_added_where_they_are_missing(ids: str) -> None:
    store = MemoryStore()
    files = [replace(BIG, ids=ids), replace(BIG, seed=5, form="pages", ids=ids)]
    done = rewritten(store, files, spec_of(tracked=True))
    assert done.copied
    assert groups_of(store, done) == [100] * 8
    [table] = outputs(store, done)
    assert not table[ROW_ID].null_count and not table[ROW_VERSION].null_count
    metadata = pq.read_metadata(io.BytesIO(store.read(done.outputs[0].name)))
    for at in range(8):
        group = metadata.row_group(at)
        chunks = [group.column(number) for number in range(group.num_columns)]
        assert group.total_byte_size == sum(chunk.total_uncompressed_size for chunk in chunks)


@pytest.mark.conformance("RT-15")
@pytest.mark.parametrize("least", [None, LEAST])
def test_row_ids_are_plain_so_that_spark_can_skip_rows_of_them(least: int | None) -> None:
    """With a filter, Spark 4.2 reads wrong values of DELTA_BINARY_PACKED beside a page index."""
    store = MemoryStore()
    done = rewritten(store, [BIG, SMALL], spec_of(tracked=True, copied_group_bytes=least))
    metadata = pq.read_metadata(io.BytesIO(store.read(done.outputs[0].name)))
    for at in range(metadata.num_row_groups):
        assert metadata.row_group(at).column(5).path_in_schema == ROW_ID
        assert set(metadata.row_group(at).column(5).encodings) == {"RLE", "PLAIN"}


@pytest.mark.conformance("RT-15")
def test_row_ids_that_spark_reads_wrongly_are_encoded_again() -> None:
    rows = content(BIG)
    ids = pa.array(range(5000, 5400), pa.int64())
    rows = rows.append_column(ROW_ID, ids).append_column(ROW_VERSION, pa.array([3] * 400))
    options = {"row_group_size": 100, "store_schema": False, "use_dictionary": ["s"]}
    data = parquet(rows, **options, column_encoding={ROW_ID: "DELTA_BINARY_PACKED"})
    store = MemoryStore()
    done = rewritten_files(store, [data], spec_of(tracked=True))
    assert done.copied
    [table] = outputs(store, done)
    assert table[ROW_ID].combine_chunks() == ids
    metadata = pq.read_metadata(io.BytesIO(store.read(done.outputs[0].name)))
    assert set(metadata.row_group(0).column(5).encodings) == {"RLE", "PLAIN"}


def test_sources_of_two_writers_share_a_file() -> None:
    """Their footers describe the same columns in different words."""
    spark = stored(BIG).replace(b"\x06schema", b"\x06sparks")
    assert b"\x06sparks" in spark
    store = MemoryStore()
    files = [spark, stored(replace(BIG, seed=9))]
    done = rewritten_files(store, files, spec_of(tracked=False))
    assert done.copied
    assert groups_of(store, done) == [100] * 8


@pytest.mark.parametrize("named", [True, False])
def test_early_days_are_encoded_only_beside_a_calendar(named: bool) -> None:
    def keyed(rows: pa.Table) -> bytes:
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, rows.schema, store_schema=False) as writer:
            writer.write_table(rows, row_group_size=100)
            if named:
                writer.add_key_value_metadata({"org.apache.spark.version": "3.5.0"})
        return sink.getvalue()

    early = content(SMALL).set_column(3, "d", pa.array([date(1400, 1, 1)] * 30))
    store = MemoryStore()
    files = [keyed(content(BIG)), parquet(early)]
    done = rewritten_files(store, files, spec_of(tracked=False))
    assert done.copied == named
    [table] = outputs(store, done)
    assert table["d"].to_pylist()[400:] == [date(1400, 1, 1)] * 30
    found = pq.read_metadata(io.BytesIO(store.read(done.outputs[0].name))).metadata
    assert b"org.apache.spark.version" in found


def test_a_source_whose_bounds_have_no_defined_order_is_decoded() -> None:
    data = stored(BIG)
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct(data[-8 - size : -8])
    footer.drop(footers.COLUMN_ORDERS)
    tail = struct_bytes(footer)
    old = data[: -8 - size] + tail + len(tail).to_bytes(4, "little") + b"PAR1"
    store = MemoryStore()
    files = [old, stored(replace(BIG, seed=3))]
    done = rewritten_files(store, files, spec_of(tracked=False))
    assert groups_of(store, done) == [200, 200, 100, 100, 100, 100]


@pytest.mark.conformance("RW-29")
@pytest.mark.parametrize(("target", "count"), [(1 << 20, 1), (6000, 3)])
def test_rows_deleted_later_are_left_out_of_files_with_another_order_of_sources(
    target: int, count: int
) -> None:
    store = MemoryStore()
    files = [SMALL, BIG, replace(SMALL, seed=3), replace(BIG, seed=4)]
    spec = spec_of(tracked=True, target_bytes=target)
    done = rewritten(store, files, spec)
    assert len(done.outputs) == count
    files = [replace(file, deleted=frozenset({3, 7})) for file in files]
    vector = DeletionVectorDescriptor.from_json(inline_vector([3, 7]))
    late = late_deletions(store, done, dict.fromkeys(range(4), vector))
    assert late is not None
    again = without_rows(store, done, late, spec, new_id=lambda: f"{9:08}-0000-4000-8000-{0:012}")
    tables = outputs(store, again)
    for number, (file, run) in enumerate(zip(files, again.runs, strict=True)):
        found = tables[run.output].slice(run.offset, run.rows)
        assert [repr(row) for row in found.to_pylist()] == expected(file, number, tracked=True)


@pytest.mark.conformance("RT-15")
def test_a_footer_that_lies_about_row_ids_leads_to_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "delta_maintenance.table.data.copying.sources._has_no_nulls", lambda _: True
    )
    files = [replace(BIG, ids="some"), replace(BIG, seed=3, ids="all")]
    store = MemoryStore()
    done = rewritten(store, files, spec_of(tracked=True))
    assert not done.copied
    [table] = outputs(store, done)
    wanted = [row for at, file in enumerate(files) for row in expected(file, at, tracked=True)]
    assert [repr(row) for row in table.to_pylist()] == wanted


def test_row_groups_with_too_many_rows_for_their_row_ids_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copied_bin, "_MOST_TRACKED", 99)
    assert not rewritten(MemoryStore(), [BIG, SMALL], spec_of(tracked=True)).copied
    assert rewritten(MemoryStore(), [BIG, SMALL], spec_of(tracked=False)).copied


@pytest.mark.parametrize("ids", ["no", "all"])
def test_a_file_without_row_ids_in_the_log_is_refused_and_the_others_are_copied(ids: str) -> None:
    files = [stored(replace(BIG, seed=seed, ids=ids)) for seed in (1, 3, 4)]
    done = rewritten_files(MemoryStore(), files, spec_of(tracked=True), without_ids={1})
    assert [refusal.source.path for refusal in done.refused] == ["f1"]
    assert done.copied and done.sums.rows == 800
