"""`cluster` on Spark: several tasks sort a bin with the rows and the order of the local engine."""

from __future__ import annotations

import io
import os
import shutil
import signal
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from pyspark import TaskContext
from pyspark.sql import SparkSession

from delta_maintenance.operations import cluster
from delta_maintenance.operations.cluster import ClusterOptions, ClusterResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.rewriting.engine import BinOutcome
from delta_maintenance.protocol.schema.data_columns import VARIANT
from delta_maintenance.protocol.statistics.ranks import can_be_ranked, comparable
from delta_maintenance.spark import JobSession, clustering, rewriting
from delta_maintenance.spark.carried_rows import CarriedRows, sortable
from delta_maintenance.spark.clustering import SortingTask
from delta_maintenance.spark.rewriting import BinTask, SparkRewriting
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.data.clustering.keys import Clustering, CurveKeys, combine
from delta_maintenance.table.data.clustering.sorter import SortedRows
from delta_maintenance.table.read import Table
from tests.support.rewrites.clustered_tables import ClusteredTable
from tests.support.rewrites.data_files import ROW_ID, ROW_TRACKING, ROW_VERSION, DataTable, field
from tests.support.rewrites.rewritten_tables import NOW
from tests.support.rewrites.table_rows import live_adds, live_rows
from tests.support.rewrites.typed_bins import bins
from tests.support.rewrites.typed_rows import FIELDS, rows
from tests.support.servers.spark_session import REPLACED_TASK

pytestmark = pytest.mark.spark

MAP = {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}
MORE = (field("z", "timestamp_ntz"), field("k", MAP), field("v", "variant"), field("p", "string"))
NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_BEEF))[0]


@given(bins())
@settings(max_examples=100)
def test_rows_of_any_type_are_carried_bit_for_bit(case: Any) -> None:
    for table, *_ in case[1]:
        carried = CarriedRows(table.schema)
        for batch in table.combine_chunks().to_batches():
            for part in (batch, batch.slice(1), batch.slice(0, max(0, batch.num_rows - 1))):
                again = carried.from_spark(carried.to_spark(part))
                assert again.schema == part.schema
                again.validate(full=True)
                views = [CarriedRows(table.schema).to_spark(each) for each in (again, part)]
                assert views[0] == views[1]
                for name in table.column_names:
                    values = part.column(name)
                    if can_be_ranked(values.type):
                        expected = pc.array_sort_indices(comparable(values))
                        assert pc.array_sort_indices(sortable(values)) == expected


class Never(BinTask):
    """Fails, so that a bin that could not be sorted by several tasks is not rewritten at all."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise AssertionError("one task sorts the bin")


def typed_table(path: Path) -> DataTable:
    """Two partitions with all types, row IDs and deleted rows."""
    table = DataTable(
        *FIELDS,
        *MORE,
        store=LocalStore(str(path)),
        features=[
            "deletionVectors",
            "rowTracking",
            "domainMetadata",
            "timestampNtz",
            "variantType",
        ],
        configuration={"delta.enableDeletionVectors": "true"} | ROW_TRACKING,
        partitioned_by=["p"],
    )
    for number in range(6):
        made = rows(number, 150)
        stamps = pa.array(np.arange(150) - 10**15, pa.timestamp("us"))
        pairs = pa.array([[("k", NAN), ("k", None)], None, []] * 50, pa.map_("string", "double"))
        variant = pa.array(
            [{"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}, None] * 75, VARIANT
        )
        for name, values in (("z", stamps), ("k", pairs), ("v", variant)):
            made = made.append_column(name, values)
        writing = {"bloom_filter_options": {"l": True}} if number == 5 else {}
        part = {"p": "xy"[number % 2]}
        [added] = table.append(made, partitionValues=part, writing=writing)
        if number > 3:
            table.delete(added, [0, 3, 149])
    return table


def sorted_by(
    spark: SparkSession,
    store: LocalStore,
    *,
    engine: type[SparkRewriting] = SparkRewriting,
    sorted_bytes: int = 1,
    **options: Any,
) -> ClusterResult:
    """Clusters a table on Spark."""
    table = Table(store)
    settings = ClusterOptions(engine="spark", workers=1, **options)
    planned = cluster.plan(table.snapshot(), settings, RunContext.at(NOW))
    # Each bin has a task of its own, as large ones have.
    session = JobSession(spark=spark, table_uri=store.root)
    made = engine(session, bytes_per_task=1, sorted_bytes=sorted_bytes)
    return cluster.apply(table, planned, RunContext.at(NOW, engine=made))


def hidden_rows(store: LocalStore) -> list[Any]:
    # A NaN equals itself as text.
    return list(map(repr, live_rows(store, row_id=ROW_ID, row_version=ROW_VERSION)))


@pytest.mark.conformance("RW-42", "RW-20", "RW-22", "RT-15", "DV-12")
@pytest.mark.parametrize("by", [("m",), ("f",), ("s", "t", "n.x")], ids=lambda by: "-".join(by))
def test_both_engines_have_the_same_rows_and_clusters(
    spark: SparkSession, tmp_path: Path, by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed_table(tmp_path / "local")
    shutil.copytree(tmp_path / "local", tmp_path / "spark")
    here, there = (LocalStore(str(tmp_path / name)) for name in ("local", "spark"))
    before = hidden_rows(here)
    options: dict[str, Any] = {"target_bytes": 20_000, "by": by}
    planned = cluster.plan(Table(here).snapshot(), ClusterOptions(**options), RunContext.at(NOW))
    local = cluster.apply(Table(here), planned, RunContext.at(NOW))
    monkeypatch.setattr(clustering, "_READ_BYTES", 1)
    monkeypatch.setattr(rewriting, "BinTask", Never)
    if len(by) == 1:
        # Different values have equal ranks.
        monkeypatch.setattr(clustering, "combine", lambda parts: combine(parts, most_rows=20))
    result = sorted_by(spark, there, **options)
    assert (result.status, result.problem) == ("rewritten", None)
    assert result.fates == local.fates == {"committed": 2}
    assert hidden_rows(there) == hidden_rows(here) == before
    for each, other in zip(result.bins, local.bins, strict=True):
        assert each.row_sums is not None and each.row_sums == other.row_sums
        assert each.is_clustered == other.is_clustered
        if len(by) > 1:
            assert each.depth_before == other.depth_before
            assert abs(each.depth_after - other.depth_after) < 1  # type: ignore[operator]
        columns = [
            key_columns(store, bin.outputs, by) for store, bin in ((here, other), (there, each))
        ]
        keys = CurveKeys.learn(clustering_by(by), columns[0])
        # Rows with equal keys have no order.
        in_order = [keys.rank(each)[1] for each in columns]
        assert in_order[0].tolist() == in_order[1].tolist() == sorted(in_order[0].tolist())
        if len(by) == 1:
            values = [comparable(each.column(0)).to_pylist() for each in columns]
            assert repr(values[0]) == repr(values[1])


def key_columns(store: LocalStore, paths: Sequence[str], by: Sequence[str]) -> pa.RecordBatch:
    """The clustering columns of new files, whose footers state the order of a single one."""
    files = [pq.ParquetFile(io.BytesIO(store.read(unquote(path)))) for path in paths]
    assert len(files) > 1
    for path, file in zip(paths, files, strict=True):
        [group] = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
        stated = [group.column(each.column_index).path_in_schema for each in group.sorting_columns]
        assert stated == (list(by) if len(by) == 1 else [])
        assert group.column(0).has_column_index
        has_filter = group.column(0).bloom_filter_offset is not None
        assert has_filter == ("p=y" in path), "as one of the sources"
    rows = pa.concat_tables([file.read() for file in files]).combine_chunks().to_batches()[0]
    return clustering_by(by).key_columns(rows)


def clustering_by(by: Sequence[str]) -> Clustering:
    return Clustering(columns=tuple(tuple(each.split(".")) for each in by), curve="hilbert")


@pytest.mark.conformance("RW-44", "RW-29", "DV-15")
@REPLACED_TASK
def test_attempts_that_end_their_executor_and_deletions_of_others_cost_no_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deadly(SortingTask):
        """Ends its process after it wrote its files for the first time."""

        def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = list(SortingTask.write(self, batches))
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0 and context.partitionId() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield from found

    class Raced(SparkRewriting):
        """Another writer deletes rows before the commit."""

        def rewrite(self, *given: Any, **options: Any) -> Iterator[BinOutcome]:
            for outcome in SparkRewriting.rewrite(self, *given, **options):
                made.table.delete(paths[2], [1, 5, 7])
                yield outcome

    made = ClusteredTable(store=LocalStore(str(tmp_path)))
    paths = made.append(4)
    made.table.delete(paths[2], [1])
    before = made.rows()
    monkeypatch.setattr(clustering, "SortingTask", Deadly)
    monkeypatch.setattr(rewriting, "BinTask", Never)
    result = sorted_by(spark, made.store, engine=Raced, target_bytes=4000)
    assert (result.status, result.fates) == ("rewritten", {"remapped": 1})
    lost = set(before) - set(made.rows())
    assert {dict(row[0])["id"] for row in lost} == {3_000_005, 3_000_007}
    assert len(made.rows()) == len(before) - 2
    referenced = set(live_adds(made.store)) | set(paths)
    assert {path.name for path in tmp_path.glob("*.parquet")} - referenced, "of the first attempt"


@REPLACED_TASK
def test_sorted_rows_that_are_not_those_of_the_sources_are_sorted_again_by_one_task(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mixing(SortingTask):
        """Exchanges the values of a column between two rows."""

        def _restore_rows(self, *given: Any) -> Iterator[SortedRows]:
            for part in SortingTask._restore_rows(self, *given):
                first = part.rows.column(0)
                mixed = first.take(pa.array([1, 0, *range(2, len(first))]))
                columns = [mixed, *part.rows.columns[1:]]
                rows = pa.RecordBatch.from_arrays(columns, schema=part.rows.schema)
                yield SortedRows(rows, part.by_value)

    made = ClusteredTable(store=LocalStore(str(tmp_path)))
    paths = made.append(2)
    before = made.rows()
    monkeypatch.setattr(clustering, "SortingTask", Mixing)
    result = sorted_by(spark, made.store)
    assert (result.status, result.fates) == ("rewritten", {"committed": 1})
    assert made.rows() == before
    referenced = set(live_adds(made.store)) | set(paths)
    assert len({path.name for path in tmp_path.glob("*.parquet")} - referenced) == 1


@pytest.mark.conformance("RW-15")
def test_a_damaged_source_is_left_out_and_small_bins_have_one_task(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ClusteredTable(store=LocalStore(str(tmp_path)))
    paths = made.append(4)
    damage(tmp_path / paths[1], "id")
    damage(tmp_path / paths[3], "t")
    monkeypatch.setattr(rewriting, "BinTask", Never)
    result = sorted_by(spark, made.store)
    assert (result.status, result.files_before) == ("failed", 2)
    assert {file.path: file.damaged for file in result.refused} == {paths[1]: True, paths[3]: True}
    assert {paths[1], paths[3]} < set(live_adds(made.store))
    made.catch_up()
    made.append(2)
    monkeypatch.setattr(rewriting, "BinTask", BinTask)
    monkeypatch.setattr(rewriting, "SparkSorting", None)
    size = sum(add["size"] for add in live_adds(made.store).values())
    assert sorted_by(spark, made.store, sorted_bytes=size + 1).files_before > 1


def damage(path: Path, column: str) -> None:
    """Overwrites the values of a column."""
    chunk = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).names.index(column))
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)
