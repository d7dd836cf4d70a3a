"""`optimize` and `purge` beside Delta Spark's deletes and merges: no row is lost or comes back.

Eight processes append with `deltalake`, one deletes with `deltalake` by copying files, and Delta
Spark deletes by deletion vectors and merges. `DELTA_MAINTENANCE_REWRITE_RACE_SECONDS` is the length
of the race in seconds. A race of a minute or more is run once more with Delta Spark's OPTIMIZE in
place of ours, to compare how many transactions of the other writers fail.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta_spark import DeltaSpark
from py4j.protocol import Py4JJavaError
from rewrites.race_ledgers import BLOCK, MERGED_IDS, PARTITIONS, Ledger, partition_of, text_of
from rewrites.race_writers import (
    MARKING,
    MERGING,
    OPTIMIZE_EVERY,
    PURGE_EVERY,
    TARGET_BYTES,
    chosen,
)
from rewrites.races import LANDED, appenders, failed, figures, landed_share, racing

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.process]

SECONDS = float(os.environ.get("DELTA_MAINTENANCE_REWRITE_RACE_SECONDS", "20"))
COMPARED_FROM = 60
"""Seconds from which on a race is run with Delta Spark's OPTIMIZE too."""
Writer = Callable[[Path, Path, DeltaSpark, float], None]


def create(spark: DeltaSpark, table: Path) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, v BIGINT, text STRING, p STRING) USING delta "
        "PARTITIONED BY (p) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
        "'delta.checkpointInterval' = '50')"
    )


def attempted(spark: DeltaSpark, ledger: Ledger, statement: str, **act: Any) -> bool:
    """Runs a statement of Delta Spark and notes how it ended. Whether it was committed."""
    try:
        spark.sql(statement)
    except Py4JJavaError as error:
        problem = str(error.java_exception)
        lost = "DELTA_CONCURRENT" in problem or "Concurrent" in problem
        ledger.note(**act, outcome="failed" if lost else "unknown", problem=problem)
        return False
    ledger.note(**act, outcome="committed")
    return True


def delete_by_vectors(table: Path, ledgers: Path, spark: DeltaSpark, until: float) -> None:
    ledger, chance = Ledger(ledgers, "marking-deleter"), random.Random(1)
    done: set[int] = set()
    while time.time() < until:
        time.sleep(chance.uniform(1, 3))
        ids = chosen(ledgers, MARKING, done, chance, most=5)
        if ids:
            rows = ", ".join(map(str, ids))
            statement = (
                f"DELETE FROM delta.`{table}` WHERE p = '{partition_of(ids[0])}' AND id IN ({rows})"
            )
            if attempted(spark, ledger, statement, kind="delete", ids=ids):
                done.update(ids)


def merge(table: Path, ledgers: Path, spark: DeltaSpark, until: float) -> None:
    """Updates three rows and inserts two."""
    ledger, chance = Ledger(ledgers, "merger"), random.Random(2)
    value, new = 0, MERGED_IDS
    while time.time() < until:
        time.sleep(chance.uniform(1, 3))
        old = chosen(ledgers, MERGING, set(), chance, most=3)
        if not old:
            continue
        value += 1
        new += BLOCK
        while partition_of(new) != partition_of(old[0]):
            new += BLOCK
        ids = [*old, new, new + 1]
        source = ", ".join(f"({row}L, '{text_of(row)}')" for row in ids)
        part = partition_of(old[0])
        statement = (
            f"MERGE INTO delta.`{table}` t USING (VALUES {source}) AS s(id, text) "
            f"ON t.p = '{part}' AND t.id = s.id "
            f"WHEN MATCHED THEN UPDATE SET v = {value} WHEN NOT MATCHED THEN "
            f"INSERT (id, v, text, p) VALUES (s.id, {value}, s.text, '{part}')"
        )
        attempted(spark, ledger, statement, kind="merge", ids=ids, value=value)


def optimize_by_spark(table: Path, ledgers: Path, spark: DeltaSpark, until: float) -> None:
    ledger = Ledger(ledgers, "optimizer-spark")
    conf, runs = "spark.databricks.delta.optimize", 0
    with (
        spark.setting(f"{conf}.minFileSize", str(TARGET_BYTES * 3 // 4)),
        spark.setting(f"{conf}.maxFileSize", str(TARGET_BYTES)),
    ):
        while time.time() < until:
            began = time.time()
            runs += 1
            purge = runs % PURGE_EVERY == 0
            statement = f"REORG TABLE delta.`{table}` APPLY (PURGE)" if purge else None
            attempted(spark, ledger, statement or f"OPTIMIZE delta.`{table}`", kind="optimize")
            time.sleep(max(0.0, began + OPTIMIZE_EVERY - time.time()))


def race(spark: DeltaSpark, folder: Path, *, ours: bool) -> dict[str, Any]:
    """Lets all writers work, and compares the rows with the ledgers."""
    table, ledgers = folder / "table", folder / "ledgers"
    ledgers.mkdir(parents=True)
    create(spark, table)
    roles = [*appenders(), ("copying-deleter", 1), *([("optimizer", 1)] if ours else [])]
    writers: list[Writer] = [delete_by_vectors, merge, *([] if ours else [optimize_by_spark])]
    until = time.time() + SECONDS
    problems: list[BaseException] = []

    def through(writer: Writer) -> None:
        try:
            writer(table, ledgers, spark, until)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=through, args=[writer]) for writer in writers]
    with racing(table, ledgers, roles, SECONDS):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = figures(table, ledgers)
    print(json.dumps(found, indent=1))
    assert not problems
    assert not found["wrong"], found
    assert not any(name.endswith("unknown") for name in found["acts"]), found
    spark.forget()
    [counted] = spark.rows(f"SELECT count(*) AS n FROM delta.`{table}`")
    assert found["rows"] == json.loads(counted)["n"]
    return found


@pytest.mark.conformance("RW-29", "RW-30", "RW-31", "RW-35")
def test_no_row_is_lost_or_comes_back(
    delta_spark: DeltaSpark, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    found = race(delta_spark, tmp_path / "ours", ours=True)
    bins = Counter(found["bins"])
    landed = sum(bins[fate] for fate in LANDED)
    count_cases("bins rewritten beside Delta Spark", landed)
    assert landed >= PARTITIONS
    assert not bins["failed"] and not bins["not-proved"] and not bins["refused"], found
    if SECONDS < COMPARED_FROM:
        return
    assert landed_share(found) >= 0.95, found
    theirs = race(delta_spark, tmp_path / "theirs", ours=False)
    assert failed(found) <= failed(theirs), (found, theirs)
