"""`recompute-stats` on Spark: the statistics of the local engine, and none of a damaged file."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from delta_maintenance import clock
from delta_maintenance.errors import InvalidRequestError, StorageError
from delta_maintenance.operations import recompute_stats
from delta_maintenance.operations.core import RunContext, find
from delta_maintenance.operations.recompute_stats import RecomputeStatsResult
from delta_maintenance.operations.recompute_stats.reading import StatisticsReading
from delta_maintenance.spark import JobSession, job
from delta_maintenance.spark.statistics import SparkStatistics
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.submission import JobSpec
from delta_maintenance.table.read import Table
from tests.support.operations.statistics_repair import NOW, planned, recompute
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.table_rows import Action, latest, live_adds

pytestmark = pytest.mark.spark

LISTS = {"type": "array", "elementType": "long", "containsNull": True}


def table_in(path: Path) -> DataTable:
    """Some files need their rows, some have deleted rows, some an untrusted writer."""
    table = DataTable(
        field("a", "long"),
        field("d", "double"),
        field("l", LISTS),
        field("p", "string"),
        store=LocalStore(str(path)),
        features=["deletionVectors"],
        partitioned_by=["p"],
    )
    for number in range(9):
        d = [1.5, math.nan if number % 2 else -0.0, None]
        rows = pa.table({"a": [number, None, 7], "d": d, "l": [[1], None, []]})
        stats = {"numRecords": 3, "minValues": {"d": -9.0}, "maxValues": {"d": 9.0}}
        given = {"stats": json.dumps(stats | {"nullCount": {"d": 1}})} if number > 5 else {}
        part = {"p": "xyz"[number // 3]}
        rows = rows if number % 3 else rows.select(["a"])
        [path_of] = table.append(rows, partitionValues=part, **given)
        if number in (2, 4, 8):
            table.delete(path_of, [0])
    return table


def stated(store: LocalStore) -> dict[str, Action]:
    """The adds by path, with their statistics as values."""
    adds = live_adds(store)
    return {path: add | {"stats": json.loads(add["stats"] or "null")} for path, add in adds.items()}


@pytest.mark.conformance("STAT-08", "DV-13")
def test_both_engines_state_the_same_and_name_a_damaged_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    damaged = list(table_in(tmp_path / "local").live)[7]
    (tmp_path / "local" / damaged).write_bytes(b"PAR1")
    shutil.copytree(tmp_path / "local", tmp_path / "spark")
    here, there = (LocalStore(str(tmp_path / name)) for name in ("local", "spark"))
    options: dict[str, Any] = {"check_writers": True, "files_per_commit": 5}
    result = recompute(here, engine="local", **options)
    before = stated(there)
    spec = JobSpec(operation="recompute-stats", table=there.root, options=options)
    found = RecomputeStatsResult.from_json(job.run(spec, spark))
    assert (found.status, found.files_recomputed, found.num_skipped) == ("failed", 8, 1)
    assert found.skipped[0].path == damaged and damaged in str(found.problem)
    assert 0 < found.files_decoded < 8
    same = replace(found, table=result.table, skipped=result.skipped, problem=result.problem)
    assert same == result
    after = stated(there)
    assert after == stated(here)
    assert {path for path in after if after[path] == before[path]} == {damaged}


def test_a_task_that_lost_the_store_is_tried_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shaky(StatisticsReading):
        """The store does not answer the first task."""

        def read(self, *given: Any, **options: Any) -> Any:
            context = TaskContext.get()
            assert context is not None
            if not options["decode"] and context.attemptNumber() == 0:
                raise StorageError("no answer")
            return StatisticsReading.read(self, *given, **options)

    table = table_in(tmp_path)
    monkeypatch.setattr(
        "delta_maintenance.operations.recompute_stats.repair.StatisticsReading", Shaky
    )
    engine = SparkStatistics(session(spark, table.store.root))
    plan = planned(table.store, engine="spark")
    result = recompute_stats.apply(Table(table.store), plan, RunContext.at(NOW, engine=engine))
    assert (result.status, result.num_skipped) == ("recomputed", 0)
    assert planned(table.store).is_noop


def session(spark: SparkSession, root: str) -> JobSession:
    return JobSession(
        spark=spark,
        table_uri=root,
        storage_options={},
        new_id=clock.new_id,
        progress=lambda *_, **__: None,
    )


def test_auto_decides_by_the_number_of_files_and_has_a_reason(tmp_path: Path) -> None:
    store = table_in(tmp_path).store
    few = planned(store)
    assert (few.engine, few.reason.split("; ")[-1]) == (
        "local",
        "these are few enough files for one process",
    )
    many = planned(store, auto_spark_files=few.files)
    assert (many.engine, many.reason.split("; ")[-1]) == (
        "spark",
        "these are more files than one process should open",
    )
    assert planned(store, auto_spark_files=few.files + 1).engine == "local"
    record, version = find("recompute-stats"), latest(store)
    assert record.needs_job(many) and not record.needs_job(replace(many, is_noop=True))
    with pytest.raises(InvalidRequestError, match=r"for Spark.*submit the Spark job"):
        recompute_stats.apply(Table(store), many, RunContext.at(NOW))
    assert latest(store) == version
