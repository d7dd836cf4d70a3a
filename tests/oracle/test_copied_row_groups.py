"""Delta Spark and `deltalake` read files with copied row groups as they read the sources."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from delta_bench import Bench
from delta_spark_tables import RECIPES, copy
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from delta_maintenance.operations import optimize
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.read.table import Table

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

COPIED = (
    "appends",
    "change_data_feed",
    "column_mapping_by_name",
    "partitioned",
    "statistics_as_json",
    "without_a_checkpoint",
)
"""Recipes with small files, most of which have row groups that can be copied."""


@pytest.mark.conformance("RW-25")
def test_copied_row_groups_are_read_as_before(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1)
    copied = []
    for name in COPIED:
        path = tmp_path / name
        copy(bench.table(name), path)

        def answers(name: str = name, path: Path = path) -> list[list[str]]:
            filtered = (f"SELECT * FROM delta.`{path}` WHERE {e}" for e in RECIPES[name].filters)
            # With filters, Spark reads by the page indexes that were moved along.
            return [sorted(bench.rows(name, path)), *map(bench.spark.rows, filtered)]

        before = answers()
        files = readable(path)
        table = Table(LocalStore(str(path)))
        options = OptimizeOptions(full=True, workers=1)
        result = optimize.apply(
            table, optimize.plan(table.snapshot(), options, now=datetime.now(UTC))
        )
        assert result.status == "rewritten", (name, result.problem)
        copied += [name] if any(each.copied for each in result.bins) else []
        bench.spark.forget()
        assert answers() == before, name
        assert readable(path) == files, name
    assert len(copied) >= 4, copied


def readable(path: Path) -> list[str] | None:
    """The rows as `deltalake` reads them; None if it does not read the table."""
    try:
        rows = DeltaTable(str(path)).to_pyarrow_table()
    except DeltaError:
        return None
    return sorted(map(repr, rows.to_pylist()))
