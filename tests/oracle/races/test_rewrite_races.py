"""Our operations beside Delta Spark, which appends, deletes, updates and merges on the same table.

`DELTA_MAINTENANCE_REWRITE_RACE_SECONDS` is the length of the race in seconds. If it is set, the
race takes place once more beside the OPTIMIZE of Delta Spark, for comparison.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError

from delta_maintenance import clock, open_table
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import cluster, optimize, purge, recompute_stats
from delta_maintenance.operations.cluster import ClusterOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.operations.recompute_stats import RecomputeStatsOptions, RecomputeStatsResult
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.operations.statistics_repair import check_bounds
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.rewrites.race_ledgers import Act, Ledger, acts
from tests.support.rewrites.races import LANDED
from tests.support.rewrites.spark_race import SparkRace
from tests.support.rewrites.table_rows import actions_of, latest, live_adds
from tests.support.servers.hdfs_cluster import HdfsCluster

GIVEN = os.environ.get("DELTA_MAINTENANCE_REWRITE_RACE_SECONDS")
SECONDS = float(GIVEN or "6")

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.timeout(600 + SECONDS)]

APPENDERS = 2 if GIVEN is None else 8
TARGET_BYTES = 256 << 10
COPIED_BYTES = 2 << 10
"""The least average size of copied row groups: appended files are larger, and those of merges
smaller.
"""
CHANGERS = ("copying-deleter-1", "marking-deleter-1", "merger-1")
PURGE_EVERY = 5
"""Every so many runs, a `purge` takes the place of an `optimize`."""


def first_row_ids(store: Store) -> dict[int, int]:
    """The row IDs that appended rows got, by the numbers of the rows."""
    found: dict[int, int] = {}
    for version in range(latest(store) + 1):
        actions = actions_of(store, version)
        if any(each.get("commitInfo", {}).get("operation") == "WRITE" for each in actions):
            for add in (each["add"] for each in actions if "add" in each):
                data = io.BytesIO(store.read(unquote(add["path"])))
                ids = pq.ParquetFile(data).read(columns=["id"])["id"].to_pylist()
                found |= {row: add["baseRowId"] + at for at, row in enumerate(ids)}
    return found


def optimize_or_purge(table: Table, number: int) -> Any:
    """One run of either."""
    context = RunContext.at(clock.now())
    if number % PURGE_EVERY:
        options = OptimizeOptions(target_bytes=TARGET_BYTES, workers=1)
        return optimize.apply(table, optimize.plan(table.snapshot(), options, context=context))
    doomed = purge.plan(table.snapshot(), PurgeOptions(workers=1), context=context)
    return purge.apply(table, doomed)


def cluster_or_recompute(table: Table, number: int) -> Any:
    """One run of either."""
    context = RunContext.at(clock.now())
    if number % 2:
        options = ClusterOptions(target_bytes=TARGET_BYTES, workers=1)
        return cluster.apply(table, cluster.plan(table.snapshot(), options, context=context))
    every = RecomputeStatsOptions(all_files=True, files_per_commit=5, workers=1)
    doubted = recompute_stats.plan(table.snapshot(), every, context)
    return recompute_stats.apply(table, doubted, context)


def check_statistics(store: Store) -> None:
    """Checks the bounds of every column of every live file against its rows."""
    for path, add in live_adds(store).items():
        rows = pq.ParquetFile(io.BytesIO(store.read(unquote(path)))).read(["id", "v", "text"])
        stats = json.loads(add["stats"])
        if add.get("deletionVector") and stats.get("tightBounds", True):
            continue
        for name in rows.column_names:
            check_bounds(stats, name, rows[name].to_pylist())


@pytest.mark.conformance("RW-29", "RW-30", "RW-31", "RT-15", "STAT-03", "CLU-03")
@pytest.mark.parametrize(
    ("work", "layout"),
    [(optimize_or_purge, "PARTITIONED BY (p)"), (cluster_or_recompute, "CLUSTER BY (p, id)")],
)
def test_beside_delta_spark_no_row_is_lost_or_comes_back(
    delta_spark: DeltaSpark,
    hdfs: HdfsCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Callable[[str, int], None],
    work: Callable[[Table, int], Any],
    layout: str,
) -> None:
    copies = work is optimize_or_purge
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", COPIED_BYTES)
    place = f"/lake/{work.__name__}"
    address = hdfs.address(place, scheme="hdfs")
    race = SparkRace(delta_spark, address, tmp_path, appenders=APPENDERS if copies else 2)
    race.create(layout)
    table = open_table(hdfs.address(place, scheme="webhdfs"))
    runs = recomputed = 0
    changes: Counter[str] = Counter()

    def rewrite(ledger: Ledger) -> None:
        nonlocal runs, recomputed, changes
        if not copies:
            # Without partitions, each commit of ours lets a change fail that is under way. Each of
            # these writers must succeed once before the next one.
            landed = Counter(each.writer for each in acts(tmp_path) if each.outcome == "committed")
            awaited = CHANGERS if runs else ("appender-1",)
            if not all(landed[name] > changes[name] for name in awaited):
                return
            changes = landed
        runs += 1
        try:
            result = work(table, runs)
        except DeltaMaintenanceError as error:
            ledger.note("optimize", "failed", problem=str(error))
            return
        fine = result.status in ("rewritten", "recomputed", "nothing-to-do")
        problem = "" if fine else f"{result.status}: {result.problem}"
        if isinstance(result, RecomputeStatsResult):
            recomputed += result.files_recomputed
            ledger.note("optimize", "committed", problem=problem)
            return
        copied = dict(Counter(each.fate for each in result.bins if each.copied))
        ledger.note("optimize", "committed", fates=result.fates, copied=copied, problem=problem)

    def suffices(act: Act) -> bool:
        landed = act.copied if copies else act.fates
        return any(fate in LANDED for fate in landed) and (copies or recomputed > 0)

    found = race.run(SECONDS, rewrite, suffices=suffices)
    given = first_row_ids(table.store)
    check_statistics(table.store)
    table.store.close()
    print(json.dumps(found | {"runs": runs, "recomputed": recomputed}, indent=1))
    assert not found["wrong"], found
    now = race.row_ids()
    assert len(set(now.values())) == len(now) == found["rows"]
    kept = given.keys() & now.keys()
    assert kept and {row: now[row] for row in kept} == {row: given[row] for row in kept}
    bins = Counter(found["bins"])
    assert not bins["failed"] and not bins["not-proved"] and not bins["refused"], found
    landed = sum(bins[fate] for fate in LANDED)
    assert landed, found
    assert recomputed or sum(found["copied"].get(fate, 0) for fate in LANDED), found
    # A few bins of a short race say little.
    assert landed / bins.total() >= 0.95 or bins.total() < 100, found
    count_cases("bins rewritten beside Delta Spark", landed)


@pytest.mark.skipif(GIVEN is None, reason="DELTA_MAINTENANCE_REWRITE_RACE_SECONDS is not set")
def test_the_same_race_beside_the_optimize_of_delta_spark(
    delta_spark: DeltaSpark, hdfs: HdfsCluster, tmp_path: Path
) -> None:
    address = hdfs.address("/lake/peer", scheme="hdfs")
    race = SparkRace(delta_spark, address, tmp_path, appenders=APPENDERS)
    race.create()

    def rewrite(ledger: Ledger) -> None:
        try:
            delta_spark.sql(f"OPTIMIZE delta.`{address}`")
        except Py4JJavaError as error:
            ledger.note("optimize", "failed", problem=str(error.java_exception.toString()))
        else:
            ledger.note("optimize", "committed", fates={"committed": 1})

    found = race.run(SECONDS, rewrite)
    print(json.dumps(found, indent=1))
    assert not found["wrong"], found
