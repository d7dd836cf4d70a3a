"""Incremental checkpoints by the Spark engine: only what changed is read and written."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delta_maintenance import open_table
from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.spark import JobSession
from delta_maintenance.spark.sidecars import SparkSidecars
from delta_maintenance.table.read import Table
from tests.support.logs.sidecar_rows import sidecar_files, sidecar_rows
from tests.support.operations.incremental_checkpoints import forged_locations, rewritten_tags
from tests.support.tables.actions import Action, add, deletion_vector, features, metadata, remove
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

pytestmark = pytest.mark.spark

DAY = timedelta(days=1)
NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + DAY
OLD, YOUNG = EPOCH_MS - 10 * 86_400_000, EPOCH_MS
VECTOR = deletion_vector("one")


def write(
    table: Table, engine: SparkSidecars | None, *, now: datetime = NOW, incremental: str = "always"
) -> CheckpointResult:
    options = CheckpointOptions(
        kind="v2-json",
        actions_per_sidecar=10,
        engine="local" if engine is None else "spark",
        incremental=incremental,
    )
    plan = checkpoint.plan(table.snapshot(), options, context=RunContext.at(now))
    return checkpoint.apply(table, plan, context=RunContext.at(now, engine=engine))


def begun(path: Path) -> TableBuilder:
    table = TableBuilder(path)
    files: list[Action] = [add(f"f{number:02d}", size=number) for number in range(40)]
    dead: list[Action] = [
        remove(f"r{number:02d}", deletionTimestamp=OLD if number < 13 else YOUNG)
        for number in range(20)
    ]
    table.commit([features("v2Checkpoint", "deletionVectors"), metadata(), *files, *dead])
    return table


def changed(path: Path, table: TableBuilder) -> None:
    table.commit([remove("f05", deletionTimestamp=YOUNG), add("new", size=1), add("r19", size=7)])
    table.commit([remove("f06", deletionTimestamp=YOUNG), add("f06", dv=VECTOR)])


@pytest.mark.conformance("CKPT-03", "CKPT-24", "REC-04")
@pytest.mark.parametrize("strangers", [False, True])
def test_both_engines_take_over_the_same_sidecars(
    spark: SparkSession, tmp_path: Path, strangers: bool
) -> None:
    results, rows, taken = [], [], []
    base = tmp_path / "base"
    builder = begun(base)
    if strangers:
        builder.v2_checkpoint(sidecars=6)
    else:
        # Tombstones of all ages are still kept by then.
        write(open_table(str(base)), None, now=NOW - 11 * DAY, incremental="never")
    before = sidecar_files(open_table(str(base)))
    changed(base, builder)
    # What comes and goes later is looked for in no sidecar.
    builder.commit([remove("new"), add("brief")])
    builder.commit([remove("brief")])
    builder.compaction(1, 4)
    for name in ("local", "spark"):
        path = tmp_path / name
        shutil.copytree(base, path)
        table = open_table(str(path))
        engine = (
            None
            if name == "local"
            else SparkSidecars(JobSession(spark=spark, table_uri=str(path)), log_bytes_per_task=1)
        )
        results.append(write(table, engine))
        rows.append(sidecar_rows(table, results[-1].version))
        opened = table.snapshot().log.checkpoint
        assert opened is not None
        taken.append({each.path for each in opened.sidecars} & before)
    ours, theirs = results
    assert ours.incremental and theirs.incremental
    assert taken[0] == taken[1] and len(taken[0]) == ours.sidecars_taken_over > 0
    assert rows[0] == rows[1]
    for field in ("num_files", "num_tombstones", "expired_tombstones", "expired_tombstones_kept"):
        assert getattr(ours, field) == getattr(theirs, field)
    if not strangers:
        # Of three sidecars of tombstones one is all expired, and of one that is half of it.
        assert ours.expired_tombstones == 13


def forged_sizes(table: TableBuilder) -> None:
    """Makes the tags of two sidecars state sizes that differ from their contents, with a correct
    sum.
    """
    signs = iter([1, -1])
    rewritten_tags(table, lambda said: said.update(bytes=said["bytes"] + next(signs, 0)))


@pytest.fixture
def forgeable(tmp_path: Path) -> TableBuilder:
    """A table whose checkpoint of ours is to be forged before commits follow."""
    builder = begun(tmp_path)
    write(open_table(str(tmp_path)), None, incremental="never")
    return builder


def write_after_forgery(spark: SparkSession, path: Path, builder: TableBuilder) -> CheckpointResult:
    changed(path, builder)
    builder.commit([remove("new"), add("brief")])
    builder.commit([remove("brief")])
    builder.compaction(1, 4)
    engine = SparkSidecars(JobSession(spark=spark, table_uri=str(path)), log_bytes_per_task=1)
    return write(open_table(str(path)), engine)


@pytest.mark.conformance("CKPT-30")
def test_no_removed_file_comes_back_by_forged_tags(
    spark: SparkSession, tmp_path: Path, forgeable: TableBuilder
) -> None:
    forged_locations(forgeable)
    result = write_after_forgery(spark, tmp_path, forgeable)
    problem = "later commits remove 2 files that were found in no sidecar"
    assert not result.incremental and problem in result.notes[-1]
    assert result.num_files == 40


@pytest.mark.conformance("CKPT-30")
def test_a_sidecar_with_other_actions_than_its_tags_is_corruption(
    spark: SparkSession, tmp_path: Path, forgeable: TableBuilder
) -> None:
    forged_sizes(forgeable)
    with pytest.raises(CorruptTableError, match="differ from its tags"):
        write_after_forgery(spark, tmp_path, forgeable)


def test_a_plan_for_spark_is_decided_by_what_executors_find(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    builder = begun(path)
    table = open_table(str(path))
    engine = SparkSidecars(JobSession(spark=spark, table_uri=str(path)))
    assert write(table, engine, incremental="never").incremental is False
    builder.commit([remove(f"f{number:02d}") for number in range(40)])
    options = CheckpointOptions(kind="v2-json", actions_per_sidecar=10, engine="spark")
    plan = checkpoint.plan(table.snapshot(), options, context=RunContext.at(NOW))
    assert plan.incremental and plan.expected_bytes is None
    result = checkpoint.apply(table, plan, context=RunContext.at(NOW, engine=engine))
    assert not result.incremental and "must be written again" in result.notes[-1]
    assert result.num_files == 0
