"""`optimize` and `purge` beside Delta Spark, which appends, deletes and merges on the same table.

`DELTA_MAINTENANCE_REWRITE_RACE_SECONDS` is the length of the race in seconds. If it is set, the
race takes place once more beside the OPTIMIZE of Delta Spark, for comparison.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta_spark import DeltaSpark
from py4j.protocol import Py4JJavaError
from rewrites.race_ledgers import Ledger
from rewrites.races import LANDED
from rewrites.spark_race import SparkRace
from servers.hdfs_cluster import HdfsCluster

from delta_maintenance import clock, open_table
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import optimize, purge
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

GIVEN = os.environ.get("DELTA_MAINTENANCE_REWRITE_RACE_SECONDS")
SECONDS = float(GIVEN or "6")
APPENDERS = 2 if GIVEN is None else 8
TARGET_BYTES = 256 << 10
PURGE_EVERY = 5
"""Every so many runs, a `purge` takes the place of an `optimize`."""


@pytest.mark.conformance("RW-29", "RW-30", "RW-31")
def test_beside_delta_spark_no_row_is_lost_or_comes_back(
    delta_spark: DeltaSpark,
    hdfs: HdfsCluster,
    tmp_path: Path,
    count_cases: Callable[[str, int], None],
) -> None:
    address = hdfs.address("/lake/race", scheme="hdfs")
    race = SparkRace(delta_spark, address, tmp_path, appenders=APPENDERS)
    race.create()
    table = open_table(hdfs.address("/lake/race", scheme="webhdfs"))
    runs = 0

    def rewrite(ledger: Ledger) -> None:
        nonlocal runs
        runs += 1
        result: Any
        try:
            if runs % PURGE_EVERY:
                options = OptimizeOptions(target_bytes=TARGET_BYTES, workers=1)
                plan = optimize.plan(table.snapshot(), options, now=clock.now())
                result = optimize.apply(table, plan)
            else:
                doomed = purge.plan(table.snapshot(), PurgeOptions(workers=1), now=clock.now())
                result = purge.apply(table, doomed)
        except DeltaMaintenanceError as error:
            ledger.note("optimize", "failed", problem=str(error))
            return
        fine = result.status in ("rewritten", "nothing-to-do")
        problem = "" if fine else f"{result.status}: {result.problem}"
        ledger.note("optimize", "committed", fates=result.fates, problem=problem)

    found = race.run(SECONDS, rewrite)
    table.store.close()
    print(json.dumps(found, indent=1))
    assert not found["wrong"], found
    bins = Counter(found["bins"])
    assert not bins["failed"] and not bins["not-proved"] and not bins["refused"], found
    landed = sum(bins[fate] for fate in LANDED)
    assert landed, found
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
