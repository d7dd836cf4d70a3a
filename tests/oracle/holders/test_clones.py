"""Shallow clones that Delta Spark made read the same after our vacuum of their source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import erasure_report, vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.erasure_report import ErasureReportOptions, ErasureReportResult
from delta_maintenance.operations.holds.references import folders_of
from tests.oracle.test_vacuum import OPTIONS
from tests.support.oracle.oracle_tables import Bench

pytestmark = [pytest.mark.oracle, pytest.mark.spark]


def reported(source: str, clones: Iterable[Path]) -> ErasureReportResult:
    """Looks for a row that every clone has, and the source has not."""
    table = open_table(source)
    options = ErasureReportOptions(where="id = 5", clones=tuple(map(str, clones)))
    return erasure_report.apply(table, erasure_report.plan(table.snapshot(), options))


def test_clones_of_versions_and_of_clones_survive_a_vacuum(bench: Bench, tmp_path: Path) -> None:
    sql, rows = bench.spark.sql, bench.spark.rows
    source, first, old, second = (tmp_path / name for name in ("so urce", "c1", "c2", "c3"))
    sql(
        f"CREATE TABLE delta.`{source}` (id BIGINT, p STRING) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    insert = f"INSERT INTO delta.`{source}` SELECT /*+ COALESCE(1) */ id, "
    sql(f"{insert} concat('a b', id % 2) FROM range(100)")
    sql(f"DELETE FROM delta.`{source}` WHERE id % 10 = 3")
    sql(f"CREATE TABLE delta.`{first}` SHALLOW CLONE delta.`{source}`")
    sql(f"CREATE TABLE delta.`{old}` SHALLOW CLONE delta.`{source}` VERSION AS OF 1")
    sql(f"DELETE FROM delta.`{first}` WHERE id = 4")
    sql(f"CREATE TABLE delta.`{second}` SHALLOW CLONE delta.`{first}`")
    sql(f"{insert} 'never cloned' FROM range(7)")
    sql(f"DELETE FROM delta.`{source}` WHERE true")
    clones = (first, old, second)
    before = [rows(f"SELECT * FROM delta.`{clone}`") for clone in clones]
    assert [len(each) for each in before] == [89, 100, 89]

    table = open_table(str(source))
    options = OPTIONS.__class__(
        **{
            name: getattr(OPTIONS, name)
            for name in ("retention", "allow_short_retention", "no_other_writers")
        },
        clones=tuple(map(str, clones)),
    )
    context = RunContext()
    plan = vacuum.plan(table.snapshot(), options, context)
    assert {each.holder for each in plan.held} == {f"clone {clone}" for clone in clones}
    result = vacuum.apply(table, plan, RunContext())
    assert result.status == "vacuumed" and result.deleted
    left = {
        path.parent.name for path in source.rglob("*.parquet") if "_delta_log" not in path.parts
    }
    assert left == {"p=a b0", "p=a b1"}
    bench.spark.forget()
    assert [rows(f"SELECT * FROM delta.`{clone}`") for clone in clones] == before
    # The version before the delete on the clone.
    assert len(rows(f"SELECT * FROM delta.`{first}` VERSION AS OF 0")) == 90
    assert folders_of(open_table(str(second)).snapshot(), now=clock.now()) == {
        str(source),
        str(first),
    }
    # The clone of the clone is found by its own references, whatever the source knows.
    found = reported(str(source), clones)
    (held,) = [each for each in found.places if each.place != "log"]
    assert (held.place, held.rows, held.last_end) == ("held", 1, None) and not found.not_examined
    for file in (second / "_delta_log").glob("*.json"):
        file.write_text("{")
    damaged = reported(str(source), clones)
    assert any(f"the clone {second}" in each for each in damaged.not_examined)
    with pytest.raises(RefusedError, match=f"the clone {second}"):
        vacuum.plan(table.snapshot(), options)
