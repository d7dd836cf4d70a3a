"""Delta Spark's VACUUM would delete the same files as ours, and reads what ours leaves."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.table.read import Table
from tests.support.oracle.delta_spark_tables import copy
from tests.support.oracle.oracle_tables import Bench

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

UNCHECKED = "spark.databricks.delta.retentionDurationCheck.enabled"
PARALLELISM = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
"""Ten thousand tasks unless it is set."""
OPTIONS = VacuumOptions(
    retention=timedelta(), allow_short_retention=True, no_other_writers=True, foreign_files=True
)
TABLES = ("partitioned", "deletion_vectors", "change_data_feed")


def litter(root: Path) -> None:
    """Files that no version knows, in every kind of place, and everything an hour old."""
    for name in (
        "orphan.parquet",
        "a/b/orphan one.parquet",
        "_tmp/hidden.parquet",
        "sub/_tmp/hidden.parquet",
        "sub/.hidden.parquet",
        "_change_data/orphan.parquet",
        "notes.txt",
        "ü%20x.parquet",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    hour_ago = clock.now().timestamp() - 3600
    for path in root.rglob("*"):
        if "_delta_log" not in path.parts:
            os.utime(path, (hour_ago, hour_ago))


def theirs(bench: Bench, root: Path) -> set[str]:
    """The files that a dry run of Delta Spark lists."""
    with bench.spark.setting(UNCHECKED, "false"), bench.spark.setting(PARALLELISM, "2"):
        rows = bench.spark.rows(f"VACUUM delta.`{root}` RETAIN 0 HOURS DRY RUN")
    found = set()
    for row in rows:
        path = str(json.loads(row)["path"]).removeprefix("file:")
        plain = next(p for p in (Path(path), Path(unquote(path))) if p.exists())
        if plain.is_file():
            found.add(str(plain.relative_to(root)))
    return found


def ours(table: Table) -> vacuum.VacuumSurvey:
    return vacuum.survey(table.snapshot(), OPTIONS, now=clock.now())


@pytest.mark.conformance("VAC-03", "VAC-04", "VAC-11", "VAC-13", "VAC-19", "VAC-20")
@pytest.mark.parametrize("name", TABLES)
def test_a_dry_run_lists_what_delta_spark_lists(bench: Bench, tmp_path: Path, name: str) -> None:
    root = copy(bench.table(name), tmp_path / "t")
    litter(root)
    table = open_table(str(root))
    surveyed = ours(table)
    listed = surveyed.found.files()["path"].to_pylist()
    # Delta Spark's file system deletes a checksum with its file, and lists none.
    assert {path for path in listed if not path.endswith(".crc")} == theirs(bench, root)
    before = bench.spark.rows(f"SELECT * FROM delta.`{root}`")
    result = vacuum.apply(
        table, surveyed.plan, context=RunContext.at(clock.now()), surveyed=surveyed
    )
    assert result.status == "vacuumed" and result.failed == 0
    bench.spark.forget()
    assert bench.spark.rows(f"SELECT * FROM delta.`{root}`") == before
    assert theirs(bench, root) == set()
    newest = bench.spark.history(root)[:2]
    assert [entry["operation"] for entry in newest] == ["VACUUM END", "VACUUM START"]
