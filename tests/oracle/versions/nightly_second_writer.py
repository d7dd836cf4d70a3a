"""Every job on the installed Spark, between writes of the Delta Spark of its time.

Part of `make nightly`, for each version of Spark: `DELTA_MAINTENANCE_DELTA_SPARK` names the writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from delta_maintenance.spark import job
from delta_maintenance.submission import JobSpec
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.servers.spark_session import local_session

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

ALONE = {"retention": "PT0S", "allow_short_retention": True, "no_other_writers": True}
JOBS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("add-constraint", {"name": "natural", "expression": "id >= 0"}, "committed"),
    ("backfill-row-ids", {"checkpoint": False}, "enabled"),
    ("recompute-stats", {"all_files": True}, "recomputed"),
    ("compact-log", {"commits_per_file": 4}, "written"),
    ("purge", {}, "rewritten"),
    ("optimize", {}, "rewritten"),
    ("cluster", {"by": ["id"]}, "rewritten"),
    ("checkpoint", {"kind": "v2-parquet"}, "written"),
    ("vacuum", ALONE, "vacuumed"),
    ("fsck", {"deep": True}, "sound"),
)
IDLE = {("purge", "partitioned")}
"""Jobs that have nothing to do."""
KINDS = {
    "partitioned": ("PARTITIONED BY (part)", {}),
    "deletion-vectors": ("", {"delta.enableDeletionVectors": "true"}),
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with local_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


def change(delta: DeltaSpark, table: str, first: int) -> None:
    """Adds rows in two files, and deletes and updates some."""
    for start in (first, first + 50):
        rows = "SELECT id, concat('p', id % 2), id * 0.5D, array(id)"
        delta.sql(f"INSERT INTO {table} {rows} FROM range({start}, {start + 50}, 1, 1)")
    delta.sql(f"DELETE FROM {table} WHERE id % 7 = 3")
    delta.sql(f"UPDATE {table} SET value = -1 WHERE id % 11 = 5")


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_writer_and_every_job_take_turns(
    delta_spark: DeltaSpark, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    clause, properties = KINDS[kind]
    table = f"delta.`{tmp_path}`"
    listed = {"delta.checkpointPolicy": "v2", "delta.enableRowTracking": "false", **properties}
    pairs = ", ".join(f"'{name}' = '{value}'" for name, value in listed.items())
    columns = "id LONG, part STRING, value DOUBLE, list ARRAY<LONG>"
    delta_spark.sql(
        f"CREATE TABLE {table} ({columns}) USING delta {clause} TBLPROPERTIES ({pairs})"
    )
    change(delta_spark, table, 0)
    before = delta_spark.rows(f"SELECT * FROM {table}")
    for operation, options, status in JOBS:
        found = run(spark, tmp_path, operation, options)
        assert found == status or (operation, kind) in IDLE and found == "nothing-to-do", operation
    delta_spark.forget()
    assert delta_spark.rows(f"SELECT * FROM {table}") == before
    # The writer goes on with the tables that the jobs left behind, and the jobs with its files.
    change(delta_spark, table, 100)
    before = delta_spark.rows(f"SELECT * FROM {table}")
    for operation, options, status in JOBS[-3:]:
        assert run(spark, tmp_path, operation, options) == status
    delta_spark.forget()
    assert delta_spark.rows(f"SELECT * FROM {table}") == before


def run(spark: SparkSession, table: Path, operation: str, options: dict[str, Any]) -> str:
    """Runs a job and returns its status."""
    spec = JobSpec(operation=operation, table=str(table), options=options)
    status: str = job.run(spec, spark)["status"]
    return status
