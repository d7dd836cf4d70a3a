"""The Spark engine on logs made for it: every way in which a share could go wrong."""

from __future__ import annotations

import json
import os
import pickle
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from benchmarks.generate import LogShape, generate
from delta_maintenance import open_table
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.spark import JobSession, sidecars
from delta_maintenance.spark.log_shares import share_labels
from delta_maintenance.spark.share_writer import Report
from delta_maintenance.spark.sidecars import SparkSidecars
from delta_maintenance.table.read import Table
from tests.support.logs.sidecar_rows import FOLDER, sidecar_files, sidecar_rows
from tests.support.tables.actions import OMIT, add, deletion_vector, features, metadata, remove, txn
from tests.support.tables.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder

pytestmark = pytest.mark.spark

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(days=7, minutes=3)
"""Tombstones of versions up to 3 have expired."""


class WatchedSidecars(SparkSidecars):
    """Remembers what came back to the driver."""

    def _run(self, *halves: Any) -> list[Report]:
        self.reports = super()._run(*halves)
        return self.reports


def write(
    table: Table, engine: SparkSidecars | None, *, per_sidecar: int = 4, now: datetime = NOW
) -> CheckpointResult:
    options = CheckpointOptions(
        kind="v2-json",
        actions_per_sidecar=per_sidecar,
        engine="local" if engine is None else "spark",
    )
    plan = checkpoint.plan(table.snapshot(), options, context=RunContext.at(now))
    return checkpoint.apply(table, plan, context=RunContext.at(now, engine=engine))


def both(
    spark: SparkSession,
    make: Callable[[Path], object],
    folder: Path,
    *,
    per_sidecar: int = 4,
    log_bytes_per_task: int = 1,
) -> list[CheckpointResult]:
    """Writes the checkpoint of a table that is made twice by each engine; their rows are one."""
    results, rows = [], []
    for name in ("local", "spark"):
        path = folder / name
        make(path)
        engine = (
            None
            if name == "local"
            else SparkSidecars(
                JobSession(spark=spark, table_uri=str(path)), log_bytes_per_task=log_bytes_per_task
            )
        )
        table = open_table(str(path))
        results.append(write(table, engine, per_sidecar=per_sidecar))
        rows.append(sidecar_rows(table, results[-1].version))
    assert rows[0] == rows[1]
    counts = ("num_files", "num_tombstones", "expired_tombstones", "kind", "version")
    assert [[getattr(result, name) for name in counts] for result in results[:1]] == [
        [getattr(result, name) for name in counts] for result in results[1:]
    ]
    return results


def start(path: Path) -> TableBuilder:
    table = TableBuilder(path)
    table.commit([features("v2Checkpoint", "deletionVectors"), metadata()])
    return table


def every_case(path: Path) -> TableBuilder:
    """Files added, removed, added again, with deletion vectors and unknown fields, over a
    checkpoint, a compaction and commits."""
    table = start(path)
    table.commit([add(f"old-{n}", stats='{"numRecords":1}') for n in range(20)])
    table.commit([remove(f"old-{n}", deletionTimestamp=EPOCH_MS + 2 * MINUTE_MS) for n in (0, 1)])
    table.checkpoint(rows_per_group=3)
    table.commit([remove("old-2", deletionTimestamp=OMIT), add("new-3"), txn("app", 1)])
    table.commit([remove("old-3", deletionTimestamp=OMIT), add("old-0"), add("p=a%20b/new-4")])
    vector, other = deletion_vector(), deletion_vector("cd^-aqEH.-t@S}K{vb[*k^")
    table.commit([remove("old-4"), add("old-4", dv=vector, baseRowId=7)])
    table.commit([remove("old-4", dv=vector, deletionTimestamp=EPOCH_MS + 9 * MINUTE_MS)])
    table.commit([add("old-4", dv=other, tags={"k": "v"}), remove("old-5"), add("old-5")])
    table.compaction(5, 7)
    table.commit([add("new-8", rank=1, later={"x": 1}), remove("old-6", why="gone", size=3)])
    newest = [add("new-9", rank=2.5, later={"y": "z"}), add("new-8", rank=3)]
    table.commit(newest, at_ms=epoch_millis(NOW))
    return table


@pytest.mark.conformance("REC-04")
def test_every_case_gives_the_rows_of_the_local_engine(spark: SparkSession, tmp_path: Path) -> None:
    local, on_spark = both(spark, every_case, tmp_path)
    assert local.expired_tombstones and local.num_tombstones
    assert on_spark.engine == "spark" and on_spark.sidecars >= 5


def test_a_json_checkpoint_is_read_too(spark: SparkSession, tmp_path: Path) -> None:
    def make(path: Path) -> None:
        table = start(path)
        table.commit([add(f"old-{n}") for n in range(9)])
        table.commit([remove("old-8", deletionTimestamp=OMIT)])
        table.v2_checkpoint()
        table.commit([remove("old-0", deletionTimestamp=EPOCH_MS * 2)])

    results = both(spark, make, tmp_path)
    assert [result.expired_tombstones for result in results] == [1, 1]


@pytest.mark.conformance("CKPT-23")
def test_a_table_without_files_has_no_sidecars(spark: SparkSession, tmp_path: Path) -> None:
    results = both(spark, start, tmp_path)
    assert [(result.sidecars, result.num_files) for result in results] == [(0, 0), (0, 0)]


@pytest.mark.conformance("STAT-07")
def test_shares_that_lack_a_statistic_are_all_written_anew_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Statistics as structs alone, and one file that says how tight its bounds are, although
    deletion vectors were dropped from the table."""
    configuration = {
        "delta.checkpoint.writeStatsAsJson": "false",
        "delta.checkpoint.writeStatsAsStruct": "true",
    }

    def make(path: Path) -> None:
        table = TableBuilder(path)
        table.commit([features("v2Checkpoint"), metadata(configuration=configuration)])
        table.commit([add(f"{n}", stats='{"numRecords":1}') for n in range(20)])
        table.commit([add("loose", stats='{"numRecords":2,"tightBounds":false}', rank=1)])

    _, on_spark = both(spark, make, tmp_path)
    assert (on_spark.engine, on_spark.num_files) == ("spark", 21)
    table = open_table(str(tmp_path / "spark"))
    told = [json.loads(row)["add"] for row in sidecar_rows(table, on_spark.version)]
    assert {"numRecords": 2, "tightBounds": False} in [row["stats_parsed"] for row in told]
    # Those of the first attempt are gone again.
    assert len(sidecar_files(table)) == on_spark.sidecars


def test_two_types_of_an_unknown_field_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = start(tmp_path)
    table.commit([add(f"a-{n}", odd=1) for n in range(20)])
    table.commit([add("b", odd={"x": 1})])
    with pytest.raises(RefusedError, match="unknown field"):
        write(
            table.open(),
            SparkSidecars(JobSession(spark=spark, table_uri=str(tmp_path)), log_bytes_per_task=1),
        )
    assert sidecar_files(table.open()) == set()


def test_two_actions_of_a_commit_for_one_file_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = start(tmp_path)
    table.commit([*(add(f"{n}") for n in range(40)), add("33", size=2)])
    with pytest.raises(CorruptTableError, match="two actions for the file 33"):
        write(table.open(), SparkSidecars(JobSession(spark=spark, table_uri=str(tmp_path))))
    assert sidecar_files(table.open()) == set()


@pytest.mark.conformance("FILE-03")
def test_two_spellings_of_a_file_meet_in_one_share(spark: SparkSession, tmp_path: Path) -> None:
    table = start(tmp_path)
    table.commit([add(f"p=1%202/{n}") for n in range(40)])
    table.commit([add(f"file:{tmp_path}/p=1%202/33")])
    before = table.names()
    with pytest.raises(CorruptTableError, match="two different paths"):
        write(table.open(), SparkSidecars(JobSession(spark=spark, table_uri=str(tmp_path))))
    # Other shares were fine and had been published.
    assert sidecar_files(table.open()) == set()
    assert table.names() == before


def test_an_unreadable_action_is_named_with_its_file(spark: SparkSession, tmp_path: Path) -> None:
    table = start(tmp_path)
    table.commit([add(f"a-{n}") for n in range(40)])
    table.commit([add("b", size="much")])
    with pytest.raises(CorruptTableError, match=r"add\.size") as failure:
        write(
            table.open(),
            SparkSidecars(JobSession(spark=spark, table_uri=str(tmp_path)), log_bytes_per_task=1),
        )
    assert failure.value.file is not None and failure.value.file.endswith("02.json")
    assert failure.value.version == table.version
    assert sidecar_files(table.open()) == set()


class LosesACommit(SparkSidecars):
    """Loses the second commit after the driver has opened the table."""

    def _run(self, *halves: Any) -> list[Report]:
        os.remove(Path(self._address.uri) / "_delta_log" / commit_name(1))
        return super()._run(*halves)


def test_a_commit_that_vanished_after_the_listing_is_corruption(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = start(tmp_path)
    table.commit([add("a")])
    with pytest.raises(CorruptTableError, match="cannot be found by an executor"):
        write(table.open(), LosesACommit(JobSession(spark=spark, table_uri=str(tmp_path))))


def test_a_damaged_checkpoint_is_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    table = start(tmp_path)
    table.commit([add(f"a-{n}") for n in range(300)])
    [name] = table.checkpoint()
    # Its footer is sound, so only reading its pages tells.
    pages = pq.ParquetFile(tmp_path / "_delta_log" / name).metadata.row_group(0).column(3)
    table.garbage(name, at=pages.data_page_offset, size=200)
    table.commit([remove("a-7", deletionTimestamp=EPOCH_MS * 2)])
    result = write(
        table.open(),
        SparkSidecars(JobSession(spark=spark, table_uri=str(tmp_path))),
        per_sidecar=100,
    )
    assert (result.num_files, result.num_tombstones) == (299, 1)
    assert table.open().snapshot().counts.num_files == 299


@pytest.mark.conformance("CKPT-25")
def test_a_failed_attempt_is_repeated_and_its_files_stay_unreferenced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = start(tmp_path)
    table.commit([add(f"a-{n}") for n in range(40)])
    in_the_way = "7d5a2b9c-2f3e-4c1a-9d57-0a1b2c3d4e5f"
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / f"{in_the_way}.parquet").write_bytes(b"another's")
    calls: list[None] = []

    def collides_at_first() -> str:
        context = TaskContext.get()
        assert context is not None
        calls.append(None)
        if context.attemptNumber() == 0 and len(calls) == 3:
            return in_the_way
        return str(uuid.uuid4())

    # One share of four sidecars: at most three are published beside the one that cannot be.
    monkeypatch.setattr(sidecars, "_FILL", 4)
    engine = SparkSidecars(
        JobSession(spark=spark, table_uri=str(tmp_path), new_id=collides_at_first)
    )
    result = write(table.open(), engine, per_sidecar=10)
    assert (result.sidecars, result.num_files) == (4, 40)
    snapshot = table.open().snapshot()
    assert snapshot.log.checkpoint is not None and snapshot.log.segment.tail == ()
    assert sorted(snapshot.live_files()["path"].to_pylist()) == sorted(f"a-{n}" for n in range(40))
    used = {sidecar.path for sidecar in snapshot.log.checkpoint.sidecars}
    unreferenced = sidecar_files(table.open()) - used
    # The last of the three may not have begun when the collision ends the attempt.
    assert f"{in_the_way}.parquet" in unreferenced and 3 <= len(unreferenced) <= 3 + 1
    assert (tmp_path / FOLDER / f"{in_the_way}.parquet").read_bytes() == b"another's"


def test_a_task_that_always_fails_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    table = start(tmp_path)
    table.commit([add("a")])

    def no_ids() -> str:
        raise OSError("out of ids")

    with pytest.raises(Exception, match="out of ids"):
        write(
            table.open(),
            SparkSidecars(JobSession(spark=spark, table_uri=str(tmp_path), new_id=no_ids)),
        )
    assert sidecar_files(table.open()) == set()
    assert table.open().snapshot().log.checkpoint is None


def test_a_table_in_memory_is_refused(spark: SparkSession) -> None:
    table = TableBuilder("memory://here/table")
    table.commit([features("v2Checkpoint"), metadata()])
    with pytest.raises(RefusedError, match="memory of this process"):
        write(table.open(), SparkSidecars(JobSession(spark=spark, table_uri="memory://here/table")))


def test_labels_keep_shares_apart(spark: SparkSession) -> None:
    for shares in (1, 2, 7, 60):
        labels = share_labels(spark, shares)
        assert len(set(labels)) == shares
        frame = spark.createDataFrame([(label,) for label in labels], "label int")
        tasks = frame.repartition(shares, "label").selectExpr("spark_partition_id() AS task")
        assert len(tasks.distinct().collect()) == shares


def test_the_session_keeps_its_settings(spark: SparkSession, tmp_path: Path) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "1234")
    try:
        write(
            every_case(tmp_path).open(),
            SparkSidecars(JobSession(spark=spark, table_uri=str(tmp_path))),
        )
        assert spark.conf.get(name) == "1234"
    finally:
        spark.conf.unset(name)


def test_large_log(spark: SparkSession, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    shape = LogShape(commits=100, adds=200_000, removes=20_000)
    generate(tmp_path, shape, now_ms=epoch_millis(now))
    upgrade = TableBuilder(tmp_path)
    upgrade.commit(
        [features("v2Checkpoint", writer_only=["appendOnly", "invariants"])],
        version=shape.commits,
        at_ms=epoch_millis(now),
    )
    table = open_table(str(tmp_path))
    engine = WatchedSidecars(
        JobSession(spark=spark, table_uri=str(tmp_path)), log_bytes_per_task=16 << 20
    )
    results = [
        write(table, engine, per_sidecar=20_000, now=now),
        write(forgetful(tmp_path), None, per_sidecar=20_000, now=now),
    ]
    assert results[0].num_files == results[1].num_files == 180_000
    assert results[0].num_tombstones == results[1].num_tombstones == 20_000
    # The driver receives little. Live files and tombstones have shares of their own.
    assert len(engine.reports) <= results[0].sidecars <= 14
    assert len(pickle.dumps(engine.reports)) < 20_000
    on_spark, local = (action_columns(tmp_path, result) for result in results)
    assert on_spark == local


def forgetful(path: Path) -> Table:
    """The table without its newest checkpoint in sight."""
    for name in path.glob("_delta_log/*.checkpoint.*.json"):
        name.rename(path / f"{name.name}.aside")
    (path / "_delta_log" / "_last_checkpoint").unlink()
    return open_table(str(path))


def action_columns(path: Path, result: CheckpointResult) -> Sequence[pa.Table]:
    """All rows of its sidecars, ordered by path."""
    assert result.path is not None
    top = path / result.path
    if not top.exists():
        top = path / f"{top.name}.aside"
    lines = [pa.json.read_json(pa.BufferReader(top.read_bytes()))["sidecar"].drop_null()]
    tables = [
        pq.read_table(path / FOLDER / row["path"]) for line in lines for row in line.to_pylist()
    ]
    rows = pa.concat_tables(tables)
    found = []
    for action in ("add", "remove"):
        column = rows[action].combine_chunks()
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        column = column.drop_null()
        flat = pa.Table.from_batches([pa.RecordBatch.from_struct_array(column)])
        found.append(flat.sort_by("path").combine_chunks())
    return found
