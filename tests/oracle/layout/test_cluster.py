"""Delta Spark on tables that `set-clustering` and `cluster` have changed.

`DELTA_MAINTENANCE_TURNS` sets the number of rounds in which both cluster one table.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.operations import cluster, set_clustering
from delta_maintenance.operations.cluster import ClusterOptions, ClusterResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.set_clustering import SetClusteringOptions
from delta_maintenance.protocol.schema import parse_schema, to_arrow_type
from delta_maintenance.protocol.statistics import clustering
from delta_maintenance.protocol.statistics.clustering import CUBE
from delta_maintenance.protocol.statistics.ranks import can_be_ranked
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.delta_spark_tables import RECIPES, copy, create
from tests.support.oracle.oracle_tables import Bench
from tests.support.oracle.recordings import RecordedSpark
from tests.support.rewrites.table_rows import live_adds
from tests.support.suite.play import some

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]

ROUNDS = int(os.environ.get("DELTA_MAINTENANCE_TURNS", "5"))


def clustered(path: Path, **options: Any) -> ClusterResult:
    """Clusters a table."""
    table = Table(LocalStore(str(path)))
    settings = ClusterOptions(workers=1, **options)
    context = RunContext.at(clock.now())
    return cluster.apply(table, cluster.plan(table.snapshot(), settings, context))


def orderable(path: Path) -> tuple[str, ...]:
    """The columns of a table by which rows can be ordered."""
    metadata = Table(LocalStore(str(path))).snapshot().metadata
    fields = parse_schema(metadata.schema_string or "").fields
    return tuple(
        f"`{item.name}`"
        for item in fields
        if item.name not in metadata.partition_columns
        and (kind := to_arrow_type(item.type)) is not None
        and can_be_ranked(kind)
    )


@pytest.mark.conformance("RT-15", "RT-17", "DV-12", "DV-15", "CM-04", "RW-20", "RW-22", "RW-27")
@pytest.mark.parametrize("name", some(sorted(RECIPES), 8))
def test_every_recipe_has_the_same_rows_afterwards(
    bench: Bench, tmp_path: Path, name: str, count_cases: Callable[[str, int], None]
) -> None:
    path = tmp_path / "table"
    copy(bench.table(name), path)
    filters = RECIPES[name].filters
    before = sorted(bench.rows(name, path))
    selected = {each: selection(bench.spark, path, each) for each in filters}
    by = () if "clustered" in name else orderable(path)[:4]
    if not by and "clustered" not in name:
        pytest.skip("the table has no column with an order")
    result = clustered(path, by=by, full=True)
    assert result.status in ("rewritten", "nothing-to-do"), result.problem
    assert not result.refused
    bench.spark.forget()
    assert sorted(bench.rows(name, path)) == before
    assert {each: selection(bench.spark, path, each) for each in filters} == selected
    with bench.spark.setting("spark.databricks.delta.stats.skipping", "false"):
        assert {each: selection(bench.spark, path, each) for each in filters} == selected
    if result.status == "rewritten":
        count_cases("tables of Delta Spark clustered", 1)


def selection(spark: DeltaSpark, path: Path, predicate: str) -> list[str]:
    """The rows for which a predicate holds."""
    return sorted(spark.rows(f"SELECT * FROM delta.`{path}` WHERE {predicate}"))


def optimized(spark: DeltaSpark, path: Path) -> int:
    """Runs OPTIMIZE. Returns the number of files that it removed."""
    before = set(live_adds(LocalStore(str(path))))
    spark.forget()
    spark.sql(f"OPTIMIZE delta.`{path}`")
    adds = live_adds(LocalStore(str(path)))
    return len(before - set(adds))


def insert(spark: DeltaSpark, path: Path, seed: int, rows: int = 200) -> None:
    """Appends one file of random rows."""
    spark.sql(
        f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id, rand({seed}) * 1000, "
        f"concat('t', cast(rand({seed + 1}) * 1000 AS INT)) FROM range({rows})"
    )


def cubes(path: Path) -> set[str]:
    """The cubes of the live files that are in one."""
    adds = live_adds(LocalStore(str(path))).values()
    return {add["tags"][CUBE] for add in adds if CUBE in (add.get("tags") or {})}


@pytest.mark.conformance("CLU-02", "CLU-03", "CLU-04", "RW-06", "TXN-10")
def test_delta_spark_takes_turns_with_us_and_has_nothing_to_do_after_us(
    recorded_spark: RecordedSpark, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    path = tmp_path / "turns"
    create(recorded_spark, path, "id BIGINT, x DOUBLE, t STRING")
    insert(recorded_spark, path, 0)
    table = Table(LocalStore(str(path)))
    context = RunContext.at(clock.now())
    options = SetClusteringOptions(by=("x", "t"))
    set_clustering.apply(table, set_clustering.plan(table.snapshot(), options, context))
    recorded_spark.forget()
    detail = " ".join(recorded_spark.rows(f"DESCRIBE DETAIL delta.`{path}`"))
    assert '"clusteringColumns":["x","t"]' in detail
    appended = 1
    for number in range(1, ROUNDS + 1):
        insert(recorded_spark, path, 10 * number)
        before = cubes(path)
        assert clustered(path).status == "rewritten"
        # We continue with the cube of Delta Spark, or with our own.
        assert number == 1 or cubes(path) == before, f"round {number}"
        between = number % 4 == 3
        if between:
            insert(recorded_spark, path, 10 * number + 5)
        # Delta Spark clusters the whole table again for one new file.
        assert (optimized(recorded_spark, path) > 1) is between, f"round {number}"
        assert len(cubes(path)) == 1
        appended += 1 + between
    rows = recorded_spark.rows(f"SELECT count(*) AS n FROM delta.`{path}` WHERE x >= 0")
    assert f":{200 * appended}}}" in rows[0]
    count_cases("rounds of turns with OPTIMIZE", ROUNDS)


CUBE_SIZE = "spark.databricks.delta.optimize.clustering.mergeStrategy.{}CubeSize.threshold"


@pytest.mark.conformance("CLU-04", "RW-06")
def test_delta_spark_has_nothing_to_do_when_a_cube_outgrows_its_limit(
    recorded_spark: RecordedSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, limit = tmp_path / "cubes", 20_000
    monkeypatch.setattr(clustering, "CUBE_BYTES", limit)
    create(recorded_spark, path, "id BIGINT, x DOUBLE, t STRING", "CLUSTER BY (x)")
    cubes: set[str] = set()
    with ExitStack() as stack:
        for name in ("min", "target"):
            stack.enter_context(recorded_spark.setting(CUBE_SIZE.format(name), str(limit)))
        for number in range(5):
            insert(recorded_spark, path, 2 * number, rows=6000 if number == 1 else 150)
            assert clustered(path).status == "rewritten"
            cubes |= {add["tags"][CUBE] for add in live_adds(LocalStore(str(path))).values()}
            assert optimized(recorded_spark, path) == 0, f"round {number}"
    assert len(cubes) > 1


@pytest.mark.conformance("CLU-03", "STAT-04")
def test_delta_spark_finds_nan_and_infinity_in_clustering_columns(
    recorded_spark: RecordedSpark, tmp_path: Path
) -> None:
    path = tmp_path / "nan"
    create(recorded_spark, path, "id BIGINT, x DOUBLE", "CLUSTER BY (x)")
    for values in ("(1, 1.0), (2, double('NaN'))", "(3, double('Infinity')), (4, -1.0)"):
        recorded_spark.sql(f"INSERT INTO delta.`{path}` VALUES {values}")
    recorded_spark.sql(f"INSERT INTO delta.`{path}` VALUES (5, double('-Infinity')), (6, NULL)")
    filters = ["x > 5000", "isnan(x)", "x < -5000", "x = 1", "x IS NULL", "x >= -1"]
    before = {each: selection(recorded_spark, path, each) for each in filters}
    assert all(before.values())
    assert clustered(path, target_bytes=1).status == "rewritten"
    recorded_spark.forget()
    assert {each: selection(recorded_spark, path, each) for each in filters} == before
    assert optimized(recorded_spark, path) == 0
