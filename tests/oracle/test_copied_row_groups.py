"""Delta Spark and `deltalake` read files that were made by copying row groups of Delta Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pytest
from delta_bench import Bench

from delta_maintenance.operations import optimize
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.read.table import Table

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

ROWS = """
SELECT id, cast(id AS int) AS i, cast(id AS double) AS d, concat('text ', id % 97) AS s,
       cast(id AS decimal(20, 3)) AS m, date_add(DATE '2020-01-01', cast(id % 900 AS int)) AS day,
       timestamp_micros(id * 1234567) AS t, named_struct('x', id, 'y', 'y') AS n,
       array(id, NULL) AS a, map('k', id) AS k
FROM range({first}, {last}, 1, 1)
"""


@pytest.mark.conformance("RW-25", "RW-23")
def test_copied_row_groups_have_the_same_rows_and_are_found_by_their_bounds(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1)
    path, spark = tmp_path / "table", bench.spark
    spark.sql("SET spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS")
    for first in range(0, 60_000, 20_000):
        rows = ROWS.format(first=first, last=first + 20_000)
        create = f"CREATE TABLE delta.`{path}` USING delta AS " if not first else ""
        spark.sql((create or f"INSERT INTO delta.`{path}` ") + rows)
    questions = [
        f"SELECT * FROM delta.`{path}`",
        f"SELECT i, s, t FROM delta.`{path}` WHERE id BETWEEN 39990 AND 40010",
        f"SELECT id, n FROM delta.`{path}` WHERE s = 'text 7' AND d > 59000",
        f"SELECT id FROM delta.`{path}` WHERE t = timestamp_micros(12345 * 1234567)",
    ]
    before = [sorted(spark.rows(question)) for question in questions]
    assert [len(rows) for rows in before[::3]] == [60_000, 1]
    table = Table(LocalStore(str(path)))
    now = datetime.now(UTC)
    plan = optimize.plan(table.snapshot(), OptimizeOptions(workers=1), now=now)
    result = optimize.apply(table, plan)
    assert [(each.fate, each.copied) for each in result.bins] == [("committed", True)]
    assert result.files_before == 3
    assert result.files_after == 1
    spark.forget()
    assert [sorted(spark.rows(question)) for question in questions] == before
    opened = deltalake.DeltaTable(str(path))
    assert sorted(opened.to_pyarrow_table(columns=["id"])["id"].to_pylist()) == list(range(60_000))
    found = opened.to_pyarrow_table(filters=[("id", ">=", 39_990), ("id", "<=", 40_010)])
    assert sorted(found["i"].to_pylist()) == list(range(39_990, 40_011))
