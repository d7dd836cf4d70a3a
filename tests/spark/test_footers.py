"""Footers read by executors, and a backfill that takes its counts from them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from delta_maintenance.errors import RefusedError
from delta_maintenance.spark import JobSession, job
from delta_maintenance.spark.statistics import SparkFooters
from delta_maintenance.submission import JobSpec
from tests.support.operations.row_ids import check
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.spark


def test_executors_count_what_threads_would(spark: SparkSession, tmp_path: Path) -> None:
    paths = []
    for rows in range(7):
        pq.write_table(pa.table({"id": range(rows)}), tmp_path / f"f {rows}")
        paths.append(f"f%20{rows}")
    (tmp_path / "damaged").write_bytes(b"PAR1")
    footers = SparkFooters(JobSession(spark=spark, table_uri=str(tmp_path)), files_per_task=3)
    found = footers(pa.array([*paths[:4], "gone", *paths[4:], "damaged"]))
    assert found.counts.to_pylist() == [0, 1, 2, 3, None, 4, 5, 6, None]
    assert footers(pa.array([], pa.string())).counts.to_pylist() == []
    gone, damaged = found.problems
    assert gone == "gone: the data file is gone" and damaged.startswith(
        "damaged: the data file cannot"
    )


def test_a_table_in_memory_is_out_of_reach(spark: SparkSession) -> None:
    with pytest.raises(RefusedError, match="memory"):
        SparkFooters(JobSession(spark=spark, table_uri="memory://x"))


def test_a_job_backfills_a_table_without_statistics(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    for rows in range(5):
        pq.write_table(pa.table({"id": range(rows)}), tmp_path / f"f{rows}")
    table.commit([log.protocol(), log.metadata(), *(log.add(f"f{n}") for n in range(5))])
    spec = JobSpec(
        operation="backfill-row-ids",
        table=str(tmp_path),
        options={"files_per_commit": 2, "checkpoint": False},
    )
    result = job.run(spec, spark)
    assert (result["status"], result["num_commits"]) == ("enabled", 5)
    assert result["high_water_mark"] == sum(range(5)) - 1
    check(table.store)
    assert json.dumps(result)
