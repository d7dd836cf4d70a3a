"""A range of commits reconciled by Spark comes to what one process makes of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.generate import LogShape, generate
from delta_maintenance import clock, open_table
from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError, RefusedError
from delta_maintenance.operations import compact_log
from delta_maintenance.operations.compact_log import CompactLogOptions, CompactLogResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.spark import JobSession, job
from delta_maintenance.spark.compact_log import SparkRange
from delta_maintenance.submission import JobSpec
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from tests.support.tables.actions import (
    Action,
    add,
    commit_info,
    deletion_vector,
    domain,
    metadata,
    protocol,
    remove,
    txn,
)
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.spark

NOW_MS = clock.epoch_millis(clock.now())


def laid_out(table: TableBuilder, folder: Path) -> Path:
    for path in [status.path for status in table.store.list_from(LOG_DIRECTORY)]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(table.store.read(path))
    return folder


def compacted(
    folder: Path, spark: SparkSession | None, *, log_bytes_per_task: int = 400
) -> tuple[CompactLogResult, dict[str, list[bytes]]]:
    """The Result, and the sorted lines of every compaction."""
    table = open_table(str(folder))
    snapshot = table.snapshot()
    options = CompactLogOptions(
        commits_per_file=snapshot.version + 1, engine="local" if spark is None else "spark"
    )
    engine = (
        None
        if spark is None
        else SparkRange(
            JobSession(spark=spark, table_uri=str(folder)), log_bytes_per_task=log_bytes_per_task
        )
    )
    plan = compact_log.plan(snapshot, options, context=RunContext.at(clock.now()))
    assert plan.engine == options.engine
    result = compact_log.apply(table, plan, context=RunContext(engine=engine), snapshot=snapshot)
    written = sorted((folder / LOG_DIRECTORY).glob("*.compacted.json"))
    return result, {file.name: sorted(file.read_bytes().splitlines()) for file in written}


def both(folder: Path, spark: SparkSession, **options: int) -> dict[str, list[bytes]]:
    """The lines that both engines agree on."""
    copy = folder.with_name(f"{folder.name}-by-spark")
    shutil.copytree(folder, copy)
    (local, expected), (by_spark, found) = (
        compacted(folder, None),
        compacted(copy, spark, **options),
    )
    assert found == expected
    assert (local.engine, by_spark.engine) == ("local", "spark")
    assert [w.num_adds for w in local.windows] == [w.num_adds for w in by_spark.windows]
    assert [w.num_removes for w in local.windows] == [w.num_removes for w in by_spark.windows]
    assert [w.status for w in by_spark.windows] == ["written"]
    return found


@pytest.mark.conformance("COMP-02", "COMP-03", "COMP-04", "COMP-05")
def test_all_remaining_actions_are_kept_whichever_task_reads_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TableBuilder()
    vector = deletion_vector()
    commits: list[list[Action]] = [
        [protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"])],
        [metadata(), add("a"), add("b"), txn("app", 1), domain("d", "old")],
        [remove("a"), add("c", unknown={"field": 0.10000000000000000001}), commit_info()],
        [add("a"), remove("b"), add("b", dv=vector), txn("app", 2), txn("other", 7)],
        [remove("never-added"), domain("d", "", removed=True), domain("e", "x")],
        [remove("b", dv=vector), add("d e%20f"), add('quote"d')],
        [remove("c")],
    ]
    for commit in commits:
        table.commit(commit)
    (lines,) = both(laid_out(table, tmp_path / "t"), spark, log_bytes_per_task=1).values()
    text = b"\n".join(lines)
    assert b'"removed":true' in text and b"never-added" in text and b'"version":2' in text
    assert text.count(b'"path":"a"') == 1 and b'"dataChange":true' not in text


def test_a_large_log_is_divided_with_the_same_result(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    generate(folder, LogShape(commits=60, adds=6000, removes=1500), now_ms=NOW_MS)
    (lines,) = both(folder, spark, log_bytes_per_task=1_000_000).values()
    assert len(lines) > 6000
    snapshots = [open_table(str(path)).snapshot() for path in tmp_path.iterdir()]
    assert len({snapshot.counts for snapshot in snapshots}) == 1
    assert {len(snapshot.log.segment.tail) for snapshot in snapshots} == {1}


@pytest.mark.parametrize(
    ("version", "text", "error", "problem"),
    [
        (2, b'{"add":{"path":"x"', CorruptTableError, "line"),
        (3, None, CorruptTableError, "two actions for x"),
    ],
)
def test_read_errors_of_tasks_are_those_of_one_process(
    spark: SparkSession,
    tmp_path: Path,
    version: int,
    text: bytes | None,
    error: type[DeltaMaintenanceError],
    problem: str,
) -> None:
    table = TableBuilder()
    table.commit([protocol(), metadata()])
    for number in range(5):
        table.commit([add(f"f{number}")])
    folder = laid_out(table, tmp_path / "t")
    file = folder / LOG_DIRECTORY / commit_name(version)
    snapshot = open_table(str(folder)).snapshot()
    if text is None:
        twice = TableBuilder()
        twice.commit([add("x"), remove("x")])
        text = twice.store.read(f"{LOG_DIRECTORY}/{commit_name(0)}")
    plan = compact_log.plan(
        snapshot,
        CompactLogOptions(commits_per_file=6, engine="spark"),
        context=RunContext.at(clock.now()),
    )
    file.write_bytes(text)
    before = sorted(os.listdir(folder / LOG_DIRECTORY))
    engine = SparkRange(JobSession(spark=spark, table_uri=str(folder)), log_bytes_per_task=1)
    with pytest.raises(error, match=problem) as failure:
        compact_log.apply(
            open_table(str(folder)), plan, context=RunContext(engine=engine), snapshot=snapshot
        )
    assert failure.value.file == f"{LOG_DIRECTORY}/{commit_name(version)}"
    assert sorted(os.listdir(folder / LOG_DIRECTORY)) == before


def test_the_job_does_it_and_reports(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder()
    table.commit([protocol(), metadata()])
    for number in range(5):
        table.commit([add(f"f{number}")])
    folder = laid_out(table, tmp_path / "t")
    spec = JobSpec(operation="compact-log", table=str(folder), options={"commits_per_file": 6})
    result = CompactLogResult.from_json(job.run(spec, spark))
    assert (result.status, result.engine) == ("written", "spark")
    assert [window.num_adds for window in result.windows] == [5]


def test_a_plan_for_spark_is_not_carried_out_without_it() -> None:
    table = TableBuilder()
    for number in range(4):
        table.commit([protocol(), metadata()] if number == 0 else [add(f"f{number}")])
    snapshot = table.open().snapshot()
    small = compact_log.plan(
        snapshot, CompactLogOptions(commits_per_file=4), context=RunContext.at(clock.now())
    )
    large = compact_log.plan(
        snapshot,
        CompactLogOptions(commits_per_file=4, auto_spark_bytes=1),
        context=RunContext.at(clock.now()),
    )
    assert (small.engine, large.engine) == ("local", "spark")
    assert "B of commits" in large.reason
    with pytest.raises(DeltaMaintenanceError, match="is for Spark"):
        compact_log.apply(table.open(), large)
    with pytest.raises(RefusedError, match="executors"):
        # Refused before any session.
        SparkRange(JobSession(spark=None, table_uri="memory:t"))  # type: ignore[arg-type]
