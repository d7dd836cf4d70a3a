"""Bins whose rows are sorted: the same rows with their row IDs, in any amount of memory."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import StorageError, VerificationError
from delta_maintenance.protocol.data_files.row_digest import RowSums
from delta_maintenance.protocol.statistics.ranks import can_be_ranked
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data.bins import RewriteSpec, RewrittenBin, RowsSum
from delta_maintenance.table.data.clustering import clustered_bin, sorter
from delta_maintenance.table.data.clustering.keys import Clustering
from delta_maintenance.table.data.clustering.sorter import KEY, RangeFile, RangeFiles, RowSorter
from delta_maintenance.table.data.data_file_reader import DataFileReader, FileRows, SourceFile
from delta_maintenance.table.data.data_file_writer import DataFileWriter
from delta_maintenance.table.data.read_back import stored_sums
from delta_maintenance.table.parallel import IdleWorkers
from tests.support.rewrites.data_files import ROW_ID, ROW_VERSION, field, parquet, put, source
from tests.support.rewrites.typed_bins import bins, prepared, rewritten, spec_of, stored

CURVES = ["hilbert", "z-order", "linear"]


def clustering_of(spec: RewriteSpec, *columns: str, **options: Any) -> RewriteSpec:
    paths = tuple(tuple(column.split(".")) for column in columns)
    return replace(spec, clustering=Clustering(columns=paths, **options))


def leaves(schema: pa.Schema) -> list[str]:
    """The columns that can be clustered."""
    found = []
    for column in schema:
        nested = column.type if pa.types.is_struct(column.type) else ()
        every = [(column.name, column.type), *((f"{column.name}.{f.name}", f.type) for f in nested)]
        found += [name for name, kind in every if can_be_ranked(kind)]
    return [name for name in found if name not in (ROW_ID, ROW_VERSION)]


@given(bins(), st.data())
@settings(max_examples=150)
@pytest.mark.conformance("RW-20", "RW-21", "RT-15", "RT-16", "RT-17", "DV-12")
def test_the_live_rows_come_out_with_their_ids_whatever_the_memory(
    case: Any, data: st.DataObject
) -> None:
    fields, _ = case
    spec, store = spec_of(*fields, tracked=True), MemoryStore()
    sources, expected = prepared(store, case)
    possible = leaves(spec.files.layout.schema)
    if not possible:
        return
    columns = data.draw(st.lists(st.sampled_from(possible), min_size=1, max_size=4, unique=True))
    clustered = clustering_of(
        spec,
        *columns,
        curve=data.draw(st.sampled_from(CURVES)),
        sort_bytes=data.draw(st.sampled_from([1, 100, 1000, 1 << 20])),
    )
    done = rewritten(store, sources, clustered)
    assert not done.refused
    assert done.sums.rows == len(expected)
    if not expected:
        assert not done.outputs
        return
    found = stored(store, done)
    assert Counter(map(repr, found.to_pylist())) == Counter(map(repr, expected))
    other = MemoryStore()
    prepared(other, case)
    assert done.sums == rewritten(other, sources, replace(spec, subtracts=True)).sums
    assert done.clustered is not None


def random_table(rows: int, *, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "x": draw.integers(0, 1000, rows),
            "y": draw.normal(size=rows),
            "text": pa.array([f"{n:04d}" for n in draw.integers(0, 5000, rows)]),
        }
    )


FIELDS = [field("x", "long"), field("y", "double"), field("text", "string")]


def stored_sources(store: MemoryStore, *tables: pa.Table) -> list[Any]:
    found = []
    for number, table in enumerate(tables):
        data = parquet(table)
        put(store, f"f{number}", data)
        found.append(source(f"f{number}", data, rows=table.num_rows))
    return found


@pytest.mark.parametrize("sort_bytes", [1 << 14, 1 << 24], ids=["ranges", "memory"])
@pytest.mark.parametrize("column", ["x", "y", "text"])
def test_rows_of_one_column_are_in_its_order_and_the_footer_says_so(
    column: str, sort_bytes: int
) -> None:
    store = MemoryStore()
    tables = [random_table(5000, seed=seed) for seed in range(3)]
    spec = clustering_of(spec_of(*FIELDS), column, curve="hilbert", sort_bytes=sort_bytes)
    spec = replace(spec, target_bytes=100_000)
    done = rewritten(store, stored_sources(store, *tables), spec)
    values = stored(store, done)[column].to_pylist()
    assert len(done.outputs) > 1
    assert values == sorted(values)
    for output in done.outputs:
        group = pq.read_metadata(io.BytesIO(store.read(output.name))).row_group(0)
        (by,) = group.sorting_columns
        assert group.column(by.column_index).path_in_schema == column
        assert (by.descending, by.nulls_first) == (False, True)


def test_more_values_than_ranks_are_sorted_completely() -> None:
    store = MemoryStore()
    values = np.random.default_rng(0).normal(size=100_000)
    spec = clustering_of(spec_of(field("y", "double")), "y", curve="hilbert")
    done = rewritten(store, stored_sources(store, pa.table({"y": values})), spec)
    assert stored(store, done)["y"].to_pylist() == sorted(values.tolist())


def test_nulls_come_first_and_nan_comes_last() -> None:
    store = MemoryStore()
    values = [3.0, None, math.nan, 1.0, None, 2.0]
    tables = [pa.table({"y": pa.array(values, pa.float64())})] * 2
    spec = clustering_of(spec_of(field("y", "double")), "y", curve="linear")
    done = rewritten(store, stored_sources(store, *tables), spec)
    found = stored(store, done)["y"].to_pylist()
    assert found[:4] == [None] * 4
    assert found[4:10] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert all(map(math.isnan, found[10:]))


@pytest.mark.conformance("RW-47")
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("sort_bytes", [1 << 15, 1 << 24], ids=["ranges", "memory"])
def test_new_files_overlap_less(curve: str, sort_bytes: int) -> None:
    store = MemoryStore()
    tables = [random_table(10_000, seed=seed) for seed in range(8)]
    spec = clustering_of(spec_of(*FIELDS), "x", "text", curve=curve, sort_bytes=sort_bytes)
    spec = replace(spec, target_bytes=60_000)
    done = rewritten(store, stored_sources(store, *tables), spec)
    outcome = done.clustered
    assert outcome is not None and outcome.is_clustered
    assert outcome.before.files == pytest.approx(8, rel=0.01)
    assert len(done.outputs) > 10
    assert outcome.after.files < 2.5
    groups = pq.read_metadata(io.BytesIO(store.read(done.outputs[0].name)))
    assert not groups.row_group(0).sorting_columns


def test_a_value_that_exceeds_the_memory_is_written_in_parts() -> None:
    store = MemoryStore()
    rows = 20_000
    tables = [
        pa.table({"x": pa.array([7] * rows + [1, 9]), "y": np.arange(rows + 2, dtype=np.float64)})
    ] * 2
    spec = clustering_of(
        spec_of(field("x", "long"), field("y", "double")), "x", curve="linear", sort_bytes=1 << 15
    )
    done = rewritten(store, stored_sources(store, *tables), spec)
    assert stored(store, done)["x"].to_pylist() == [1, 1, *[7] * 2 * rows, 9, 9]


@pytest.mark.conformance("CLU-03", "STAT-03")
def test_a_text_without_an_upper_bound_is_named() -> None:
    store = MemoryStore()
    longest = "\U0010ffff" * 40
    tables = [pa.table({"t": ["a", longest]}), pa.table({"t": ["b", "c"]})]
    spec = clustering_of(spec_of(field("t", "string")), "t", curve="linear")
    done = rewritten(store, stored_sources(store, *tables), spec)
    assert done.clustered is not None
    assert (done.clustered.unbounded, done.clustered.is_clustered) == ("t", False)


@given(
    lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
    by=st.sampled_from([("x",), ("text",), ("x", "text"), ("y", "x", "text")]),
    sort_bytes=st.sampled_from([1 << 12, 1 << 15, 1 << 24]),
    files=st.integers(1, 4),
    group_bytes=st.sampled_from([1 << 12, 1 << 16]),
    idle=st.integers(1, 3),
)
@settings(max_examples=40)
def test_idle_workers_change_no_byte_of_the_new_files(
    lengths: list[int],
    by: tuple[str, ...],
    sort_bytes: int,
    files: int,
    group_bytes: int,
    idle: int,
) -> None:
    tables = [random_table(length, seed=seed) for seed, length in enumerate(lengths)]
    spec = clustering_of(spec_of(*FIELDS), *by, curve="hilbert", sort_bytes=sort_bytes)
    outcomes, contents = [], []
    for workers in (None, IdleWorkers()):
        store = MemoryStore(now_ms=lambda: 0)
        sources = stored_sources(store, *tables)
        target_bytes = max(1, sum(source.size for source in sources) // files)
        group_spec = replace(spec.files, group_bytes=group_bytes)
        if workers is not None:
            workers.add(idle)
        done = rewritten(
            store, sources, replace(spec, files=group_spec, target_bytes=target_bytes), workers
        )
        outcomes.append(done)
        contents.append([store.read(output.name) for output in done.outputs])
    assert workers is not None
    assert [workers.take() for _ in range(idle + 1)] == [True] * idle + [False]
    assert outcomes[0] == outcomes[1]
    assert contents[0] == contents[1]


def test_two_threads_read_the_clustering_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the other, so one thread alone would not read them."""
    read, meet = DataFileReader.read, threading.Barrier(2, timeout=30)

    def reading(self: DataFileReader, file: SourceFile, **options: Any) -> Iterator[FileRows]:
        if self._layout.schema.names == ["x"] and file.path != "f0":
            meet.wait()
        yield from read(self, file, **options)

    monkeypatch.setattr(DataFileReader, "read", reading)
    store, idle_workers = MemoryStore(), IdleWorkers()
    idle_workers.add()
    tables = [random_table(100, seed=seed) for seed in range(3)]
    spec = clustering_of(spec_of(*FIELDS), "x", curve="hilbert", sort_bytes=1)
    # The helper with the rows may hold one batch, so it waits when the columns are read.
    spec = replace(spec, files=replace(spec.files, group_bytes=1))
    assert rewritten(store, stored_sources(store, *tables), spec, idle_workers).sums.rows == 300


def several_files(idle_workers: IdleWorkers) -> RewrittenBin:
    store = MemoryStore()
    sources = stored_sources(store, *[random_table(1000, seed=seed) for seed in range(4)])
    spec = clustering_of(spec_of(*FIELDS), "x", "y", curve="hilbert")
    spec = replace(spec, target_bytes=sum(source.size for source in sources) // 4)
    done: RewrittenBin = rewritten(store, sources, spec, idle_workers)
    return done


def test_a_file_is_read_back_while_the_next_one_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    write, read, first = DataFileWriter.write, stored_sums, list[DataFileWriter]()
    is_next_written = threading.Event()

    def writing(self: DataFileWriter, rows: pa.RecordBatch) -> None:
        first[:] = first or [self]
        if self is not first[0]:
            is_next_written.set()
        write(self, rows)

    def reading(*arguments: Any, **options: Any) -> RowsSum:
        assert is_next_written.wait(30)
        return read(*arguments, **options)

    monkeypatch.setattr(DataFileWriter, "write", writing)
    monkeypatch.setattr(clustered_bin, stored_sums.__name__, reading)
    idle_workers = IdleWorkers()
    idle_workers.add()
    done = several_files(idle_workers)
    assert len(done.outputs) == 4 and done.sums.rows == 4000


@pytest.mark.conformance("RW-40")
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("idle", [0, 1])
def test_other_rows_in_any_new_file_are_not_proved(
    idle: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, files = stored_sums, list[str]()

    def reading(*arguments: Any, **options: Any) -> RowsSum:
        sums = read(*arguments, **options)
        ((output,), _) = arguments[-2:]
        files.append(output.name)
        assert isinstance(sums, RowSums)
        return replace(sums, first=sums.first ^ 1) if len(files) == number + 1 else sums

    monkeypatch.setattr(clustered_bin, stored_sums.__name__, reading)
    idle_workers = IdleWorkers()
    idle_workers.add(idle)
    with pytest.raises(VerificationError, match="not those that were read"):
        several_files(idle_workers)
    assert len(set(files)) == 4
    assert [idle_workers.take() for _ in range(2)] == [bool(idle), False]


def test_a_file_that_cannot_be_read_back_ends_the_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(*_: Any, **__: Any) -> RowsSum:
        raise StorageError("the store is away")

    enter, writers = DataFileWriter.__enter__, list[DataFileWriter]()

    def entering(self: DataFileWriter) -> DataFileWriter:
        writers.append(self)
        return enter(self)

    monkeypatch.setattr(DataFileWriter, "__enter__", entering)
    monkeypatch.setattr(clustered_bin, stored_sums.__name__, reading)
    idle_workers = IdleWorkers()
    idle_workers.add()
    with pytest.raises(StorageError, match="away"):
        several_files(idle_workers)
    assert idle_workers.take()
    assert len(writers) == 2 and all(writer.is_closed for writer in writers)


@given(st.lists(st.floats() | st.none(), min_size=1), st.booleans())
@pytest.mark.conformance("CLU-03", "STAT-04")
def test_every_clustering_column_has_bounds_that_contain_its_values(
    values: list[float | None], clustered: bool
) -> None:
    store = MemoryStore()
    spec = spec_of(field("y", "double"))
    marked = tuple(replace(leaf, clustered=clustered) for leaf in spec.files.statistics.leaves)
    files = replace(spec.files, statistics=replace(spec.files.statistics, leaves=marked))
    spec = clustering_of(replace(spec, files=files), "y", curve="linear")
    table = pa.table({"y": pa.array(values, pa.float64())})
    done = rewritten(store, stored_sources(store, table), spec)
    stats = json.loads(done.outputs[0].stats)
    least, greatest = (stats.get(name, {}).get("y") for name in ("minValues", "maxValues"))
    known = [value for value in values if value is not None]
    if clustered and known:
        # As Delta Spark writes them: NaN is the greatest value.
        ordered = sorted(known, key=lambda value: (math.isnan(value), value))
        assert least == _as_json(ordered[0])
        assert greatest == _as_json(ordered[-1])
    elif not known or any(map(math.isnan, known)):
        assert greatest is None
    assert done.clustered is not None
    complete = not known or (least is not None and greatest is not None)
    assert (done.clustered.unbounded is None) == complete


def _as_json(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def test_a_source_that_cannot_be_read_is_left_out() -> None:
    store = MemoryStore()
    good, bad, other = stored_sources(store, *[random_table(100, seed=n) for n in range(3)])
    put(store, "damaged", b"PAR1" + bytes(100))
    bad = replace(bad, path="damaged", size=104)
    spec = clustering_of(spec_of(*FIELDS), "x", "y", curve="hilbert", sort_bytes=100)
    done = rewritten(store, [good, bad, other], spec)
    assert [refusal.source.path for refusal in done.refused] == ["damaged"]
    assert done.sums.rows == 200
    assert list(itertools.chain(source.path for source in done.bin.sources)) == ["f0", "f2"]


def peak_of_sorted_reading(ranges: int, *, sort_bytes: int = 1 << 14) -> int:
    """The bytes that Arrow allocates to read rows in order that fill half of `sort_bytes` in each
    range."""
    columns = {name: pa.int64() for name in ("x", "y")} | {"filler": pa.binary(200)}
    schema = pa.schema(columns.items())
    count = ranges * sort_bytes // 2 // sum(kind.bit_width // 8 for kind in columns.values())
    numbers = np.random.default_rng(0).permutation(count)
    filler = pa.array([bytes(200)] * count, columns["filler"])
    rows = pa.record_batch([pa.array(numbers), pa.array(numbers[::-1]), filler], schema=schema)
    batches = [rows.slice(at, 100) for at in range(0, count, 100)]
    clustering = Clustering(columns=(("x",), ("y",)), curve="hilbert", sort_bytes=sort_bytes)
    pool, shared = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    with RowSorter(schema, clustering, lambda: batches) as row_sorter:
        for batch in batches:
            row_sorter.add(0, batch)
        pa.set_memory_pool(pool)
        try:
            assert sum(piece.rows.num_rows for piece in row_sorter.read_sorted()) == count
        finally:
            pa.set_memory_pool(shared)
    return int(pool.max_memory())


@pytest.mark.conformance("RW-43")
def test_sorting_takes_no_more_memory_if_the_bin_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorter, "_PART_BYTES", 1)
    # The ranges differ in size, because a sample decides them.
    assert peak_of_sorted_reading(220) < 1.5 * peak_of_sorted_reading(10)


def test_ranges_need_no_open_files(tmp_path: Path) -> None:
    keys = np.arange(1000, dtype=np.uint64)
    rows = pa.record_batch({"x": keys, KEY: keys})
    before = os.listdir("/dev/fd")
    ranges = RangeFiles(tmp_path / "ranges", rows.schema, keys[1:], buffer_bytes=1)
    for _ in range(2):
        ranges.add(rows)
    assert len(os.listdir("/dev/fd")) == len(before)
    assert [len(list(file.read())) for file in ranges.files] == [2] * len(keys)


def test_a_writer_holds_no_buffers_once_its_file_is_closed() -> None:
    batch = random_table(1 << 16).to_batches()[0]
    before = pa.total_allocated_bytes()
    with DataFileWriter(MemoryStore(), "file.parquet", spec_of(*FIELDS).files) as writer:
        writer.write(batch)
    assert writer.rows == batch.num_rows
    assert pa.total_allocated_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_temporary_directory_is_named() -> None:
    rows = pa.record_batch({"x": np.arange(1 << 16), KEY: np.arange(1 << 16, dtype=np.uint64)})
    file = RangeFile(Path("/dev/full"), rows.schema)
    with pytest.raises(StorageError, match="/dev/full.*No space left.*TMPDIR"):
        file.write(rows)
