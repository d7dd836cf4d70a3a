"""Delta Spark reads the same rows, row IDs and commit versions after `optimize` and `purge`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.errors import DeltaMaintenanceError, UnsupportedFeatureError
from delta_maintenance.operations import optimize, purge
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.oracle.delta_spark_tables import RECIPES, copy
from tests.support.oracle.oracle_tables import Bench
from tests.support.suite.play import some
from tests.support.tables.corpus_tables import TABLES

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]


@pytest.mark.conformance(
    "RT-15",
    "RT-17",
    "DV-12",
    "DV-15",
    "CM-04",
    "CONS-04",
    "RW-10",
    "RW-14",
    "RW-16",
    "RW-20",
    "RW-22",
    "RW-27",
)
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_has_the_same_rows_afterwards(
    bench: Bench, tmp_path: Path, name: str, count_cases: Callable[[str, int], None]
) -> None:
    path = tmp_path / "table"
    copy(bench.table(name), path)
    before = sorted(bench.rows(name, path))
    table = Table(LocalStore(str(path)))
    now = clock.now()
    try:
        merged = optimize.plan(
            table.snapshot(), OptimizeOptions(full=True, workers=1), context=RunContext.at(now)
        )
    except UnsupportedFeatureError as error:
        pytest.skip(str(error))
    result = optimize.apply(table, merged)
    assert result.status in ("rewritten", "nothing-to-do"), result.problem
    assert not result.refused
    purged = purge.apply(
        table,
        purge.plan(table.snapshot(), PurgeOptions(workers=1), context=RunContext.at(clock.now())),
    )
    assert purged.status in ("rewritten", "nothing-to-do"), purged.problem
    bench.spark.forget()
    assert sorted(bench.rows(name, path)) == before
    live = table.snapshot().live_files()
    assert not live.num_rows or live["dv"].null_count == live.num_rows
    if result.status == "rewritten":
        count_cases("tables of Delta Spark rewritten", 1)


def query(table: Path) -> str:
    """The rows of a table, with their row IDs where it tracks them."""
    properties = open_table(str(table)).snapshot().properties
    ids = (
        ", _metadata.row_id, _metadata.row_commit_version" if properties.enable_row_tracking else ""
    )
    return f"SELECT *{ids} FROM delta.`{table}`"


@pytest.mark.conformance("RW-08", "RW-11", "RW-12", "RW-13", "RT-15", "PART-03", "PART-09")
@pytest.mark.parametrize("name", some(TABLES, 4))
def test_every_real_table_has_the_same_rows_afterwards(
    corpus: Path, bench: Bench, tmp_path: Path, name: str, count_cases: Callable[[str, int], None]
) -> None:
    if not (corpus / name / "_delta_log").is_dir():
        pytest.skip("no log at all")
    path = tmp_path / "table"
    shutil.copytree(corpus / name, path, copy_function=shutil.copyfile)
    table = open_table(str(path))
    try:
        options = OptimizeOptions(full=True, int96=True, other_codecs=True, workers=1)
        merged = optimize.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
        before = sorted(bench.spark.rows(query(path)))
    except DeltaMaintenanceError as error:
        pytest.skip(f"not rewritten: {error.problem}")
    except Exception as error:
        pytest.skip(f"not read by Delta Spark: {' '.join(str(error).split())[:200]}")
    results = [optimize.apply(table, merged)]
    planned = purge.plan(
        table.snapshot(), PurgeOptions(workers=1), context=RunContext.at(clock.now())
    )
    results.append(purge.apply(table, planned))
    for result in results:
        assert result.status in ("rewritten", "nothing-to-do") or result.refused, result.problem
    bench.spark.forget()
    assert sorted(bench.spark.rows(query(path))) == before
    if any(result.status == "rewritten" for result in results):
        count_cases("real tables rewritten and read by Delta Spark", 1)
