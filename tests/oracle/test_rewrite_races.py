"""`optimize` and `purge` beside appenders, deleters and a merger: no row is lost or comes back.

Eight processes append with `deltalake`, one deletes with `deltalake` by copying files, and Delta
Spark deletes by deletion vectors and merges. Every row has its own ID, and every writer a ledger of
its acts. `DELTA_MAINTENANCE_REWRITE_RACE_SECONDS` is the length of the race in seconds. A race of a
minute or more is run once more with Delta Spark's OPTIMIZE in place of ours, to compare how many
transactions of the other writers fail.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_spark import DeltaSpark
from py4j.protocol import Py4JJavaError
from rewrites.race_ledgers import (
    BLOCK,
    MERGED_IDS,
    PARTITIONS,
    Ledger,
    Wrong,
    acts,
    compared,
    expected,
    partition_of,
    text_of,
)
from rewrites.race_writers import (
    MARKING,
    MERGING,
    OPTIMIZE_EVERY,
    PURGE_EVERY,
    TARGET_BYTES,
    chosen,
)
from rewrites.table_rows import live_adds

from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor, load
from delta_maintenance.storage.local.store import LocalStore

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.process]

SECONDS = float(os.environ.get("DELTA_MAINTENANCE_REWRITE_RACE_SECONDS", "20"))
COMPARED_FROM = 60
"""Seconds from which on a race is run with Delta Spark's OPTIMIZE too."""
APPENDERS = 8
LANDED = ("committed", "remapped", "re-spun")
SUPPORT = Path(__file__).parents[1] / "support"
Writer = Callable[[str, Path, DeltaSpark, float], None]


def create(spark: DeltaSpark, table: str) -> None:
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


def delete_by_vectors(table: str, ledgers: Path, spark: DeltaSpark, until: float) -> None:
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


def merge(table: str, ledgers: Path, spark: DeltaSpark, until: float) -> None:
    """Updates three rows and inserts two."""
    ledger, chance = Ledger(ledgers, "merger"), random.Random(2)
    value, block = 0, MERGED_IDS // BLOCK
    while time.time() < until:
        time.sleep(chance.uniform(1, 3))
        old = chosen(ledgers, MERGING, set(), chance, most=3)
        if not old:
            continue
        value += 1
        block += 1
        while partition_of(block * BLOCK) != partition_of(old[0]):
            block += 1
        ids = [*old, block * BLOCK, block * BLOCK + 1]
        source = ", ".join(f"({row}L, '{text_of(row)}')" for row in ids)
        part = partition_of(old[0])
        statement = (
            f"MERGE INTO delta.`{table}` t USING (VALUES {source}) AS s(id, text) "
            f"ON t.p = '{part}' AND t.id = s.id "
            f"WHEN MATCHED THEN UPDATE SET v = {value} WHEN NOT MATCHED THEN "
            f"INSERT (id, v, text, p) VALUES (s.id, {value}, s.text, '{part}')"
        )
        attempted(spark, ledger, statement, kind="merge", ids=ids, value=value)


def optimize_by_spark(table: str, ledgers: Path, spark: DeltaSpark, until: float) -> None:
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


def race(spark: DeltaSpark, folder: Path, *, ours: bool, seconds: float) -> dict[str, Any]:
    """Lets all writers work for so long. The amounts that they report, and the wrong rows."""
    table, ledgers = str(folder / "table"), folder / "ledgers"
    ledgers.mkdir(parents=True)
    create(spark, table)
    roles = [*(("appender", number) for number in range(1, APPENDERS + 1)), ("deleter", 1)]
    if ours:
        roles.append(("optimizer", 1))
    writers: list[Writer] = [delete_by_vectors, merge, *([] if ours else [optimize_by_spark])]
    until = time.time() + seconds
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "rewrites.race_writers"]
            + [role, table, str(ledgers), str(number), str(seconds)],
            env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        )
        for role, number in roles
    ]
    problems: list[BaseException] = []

    def through(writer: Writer) -> None:
        try:
            writer(table, ledgers, spark, until)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=through, args=[writer]) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = [process.wait(timeout=120) for process in processes]
    assert not problems and not any(codes), (problems, codes)
    spark.forget()
    [counted] = spark.rows(f"SELECT count(*) AS n FROM delta.`{table}`")
    wrong = compared(expected(ledgers), rows_of(table))
    figures = amounts(ledgers) | {
        "rows": json.loads(counted)["n"],
        "versions": len(list(Path(table, "_delta_log").glob("*.json"))),
        "wrong": {name: rows[:10] for name, rows in asdict(wrong).items() if rows},
    }
    assert figures["rows"] == sum(1 for _ in rows_of(table))
    assert wrong == Wrong(lost=(), revived=(), doubled=(), changed=()), figures
    return figures


def amounts(ledgers: Path) -> dict[str, Any]:
    """The acts by kind and outcome, and the bins by fate."""
    outcomes: Counter[str] = Counter()
    fates: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    for act in acts(ledgers):
        writer = act.writer.rpartition("-")[0] if act.writer[-1].isdigit() else act.writer
        outcomes[f"{writer} {act.outcome}"] += 1
        fates.update(act.fates)
        if act.problem:
            problems[f"{writer}: {act.problem[:150]}"] += 1
    return {
        "acts": dict(sorted(outcomes.items())),
        "bins": dict(fates),
        "problems": problems.most_common(8),
    }


def rows_of(table: str) -> Iterator[tuple[int, int, str, str]]:
    """ID, value, text and partition of each live row, by a replay of the commits alone."""
    store = LocalStore(table)
    for path, add in live_adds(store).items():
        data = io.BytesIO(store.read(unquote(path)))
        found = pq.ParquetFile(data).read(columns=["id", "v", "text"])
        if add.get("deletionVector"):
            vector = DeletionVectorDescriptor.from_json(add["deletionVector"])
            kept = sorted(set(range(found.num_rows)) - set(load(vector, store.read)))
            found = found.take(pa.array(kept, pa.int64()))
        columns = [found[name].to_pylist() for name in ("id", "v", "text")]
        for row in zip(*columns, strict=True):
            yield (*row, add["partitionValues"]["p"])


def failed(figures: dict[str, Any]) -> int:
    """The transactions of the other writers that failed."""
    found = figures["acts"].items()
    return sum(
        count
        for name, count in found
        if name.endswith("failed") and not name.startswith("optimizer")
    )


@pytest.mark.conformance("RW-29", "RW-30", "RW-31", "RW-35")
def test_no_row_is_lost_or_comes_back(
    delta_spark: DeltaSpark, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    figures = race(delta_spark, tmp_path / "ours", ours=True, seconds=SECONDS)
    print(json.dumps(figures, indent=1))
    bins = Counter(figures["bins"])
    landed = sum(bins[fate] for fate in LANDED)
    planned = bins.total()
    count_cases("bins rewritten beside other writers", landed)
    assert not any(name.endswith("unknown") for name in figures["acts"]), figures
    assert figures["acts"]["optimizer committed"] > 2 and landed > PARTITIONS
    assert not bins["failed"] and not bins["not-proved"], figures
    if SECONDS < COMPARED_FROM:
        return
    assert landed >= 0.95 * planned, figures
    theirs = race(delta_spark, tmp_path / "theirs", ours=False, seconds=SECONDS)
    print(json.dumps(theirs, indent=1))
    assert failed(figures) <= failed(theirs), (figures, theirs)
