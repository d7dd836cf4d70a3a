"""Delta Spark reads the same rows, row IDs and commit versions after `optimize` and `purge`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from delta_bench import Bench
from delta_spark_tables import RECIPES, copy

from delta_maintenance.errors import UnsupportedFeatureError
from delta_maintenance.operations import optimize, purge
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.read.table import Table

pytestmark = [pytest.mark.oracle, pytest.mark.spark]


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
    now = datetime.now(UTC)
    try:
        merged = optimize.plan(table.snapshot(), OptimizeOptions(full=True, workers=1), now=now)
    except UnsupportedFeatureError as error:
        pytest.skip(str(error))
    result = optimize.apply(table, merged)
    assert result.status in ("rewritten", "nothing-to-do"), result.problem
    assert not result.refused
    purged = purge.apply(
        table, purge.plan(table.snapshot(), PurgeOptions(workers=1), now=datetime.now(UTC))
    )
    assert purged.status in ("rewritten", "nothing-to-do"), purged.problem
    bench.spark.forget()
    assert sorted(bench.rows(name, path)) == before
    live = table.snapshot().live_files()
    assert not live.num_rows or live["dv"].null_count == live.num_rows
    if result.status == "rewritten":
        count_cases("tables of Delta Spark rewritten", 1)
