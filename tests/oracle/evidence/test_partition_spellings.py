"""Spellings of partition values that some readers refuse: named by fsck, mended by a rewrite."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from delta_maintenance.operations import checkpoint, optimize
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.storage import open_store
from delta_maintenance.table.read.table import Table
from tests.support.operations.fsck_runs import run
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.other_readers import DuckDb, duck
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW

__all__ = ["duck"]

SPELLINGS = {
    "decimal(10,2)": ("1.50", ["1.5", "1.50", "01.5", "1.5E0", "15E-1", "+1.500"]),
    "long": ("7", ["7", "07", "+7"]),
    "boolean": ("true", ["true", "True", "TRUE"]),
    "date": ("2026-01-02", ["2026-01-02", "2026-1-2"]),
    "timestamp": (
        "2026-01-02T03:04:05.000000Z",
        ["2026-01-02T03:04:05Z", "2026-01-02 03:04:05Z", "2026-01-02 04:04:05+01"],
    ),
    "timestamp_ntz": (
        "2026-01-02 03:04:05.12",
        ["2026-01-02T03:04:05.12", "2026-01-02 03:04:05.120000", "2026-1-2 3:04:05.12"],
    ),
}
REFUSED = ("decimal(10,2)", "timestamp", "timestamp_ntz")


def table(kind: str, texts: list[str | None], root: Path) -> DataTable:
    made = DataTable(
        field("id", "long"),
        field("p", kind),
        store=open_store(root),
        features=["timestampNtz"] if kind == "timestamp_ntz" else [],
        partitioned_by=["p"],
    )
    for number, text in enumerate(texts):
        made.append(pa.table({"id": [number]}), partitionValues={"p": text})
    return made


@pytest.mark.parametrize("kind", SPELLINGS)
def test_equal_values_are_merged_under_the_canonical_spelling(
    kind: str, tmp_path: Path, duck: DuckDb, delta_spark: DeltaSpark
) -> None:
    canonical, texts = SPELLINGS[kind]
    made = table(kind, [*texts, None, None], tmp_path)
    by_spark = delta_spark.rows(f"SELECT id, p FROM delta.`{tmp_path}`")
    found = run(Table(made.store)).findings
    named = [each.problem for each in found if each.kind == "partition-value-spelling"]
    assert bool(named) == (kind in REFUSED)
    if named:
        assert all("DuckDB" in problem and kind in problem for problem in named)
        with pytest.raises(Exception, match=r"[Pp]arse|kernel"):
            duck.rows(tmp_path)

    context = RunContext.at(NOW)
    plan = optimize.plan(Table(made.store).snapshot(), OptimizeOptions(workers=1), context=context)
    optimize.apply(Table(made.store), plan, context=context)

    files = Table(made.store).snapshot().live_files()
    values = sorted((dict(v)["p"] for v in files["partition_values"].to_pylist()), key=str)
    assert values == sorted([canonical, None], key=str)
    # The kernel also parses the values of removed files, as long as it reads their commits.
    written = checkpoint.plan(Table(made.store).snapshot(), context=context)
    checkpoint.apply(Table(made.store), written, context=context)
    assert delta_spark.rows(f"SELECT id, p FROM delta.`{tmp_path}`") == by_spark
    rows = duck.rows(tmp_path)
    assert sorted(rows["id"].to_pylist()) == list(range(len(texts) + 2))
    assert len(set(rows["p"].to_pylist())) == 2
    other = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tmp_path))
    [(count, distinct)] = [
        tuple(row.values())
        for row in pa.table(
            other.execute("SELECT count(*) AS c, count(DISTINCT p) AS d FROM t").read_all()
        ).to_pylist()
    ]
    assert (count, distinct) == (len(texts) + 2, 1)
    kinds = {each.kind for each in run(Table(made.store)).findings}
    assert "partition-value-spelling" not in kinds


def test_a_file_that_is_not_rewritten_keeps_its_spelling(tmp_path: Path) -> None:
    made = table("decimal(10,2)", ["1.5"], tmp_path)
    plan = optimize.plan(Table(made.store).snapshot(), context=RunContext.at(NOW))
    assert plan.is_noop
