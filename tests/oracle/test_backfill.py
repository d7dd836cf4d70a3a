"""Delta Spark reads the row IDs that we gave out, keeps them, and writes while we give them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from delta_maintenance import clock
from delta_maintenance.operations import backfill_row_ids
from delta_maintenance.operations.backfill_row_ids import (
    BackfillRowIdsOptions,
    BackfillRowIdsResult,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage.core import Put
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.operations.row_ids import check, commits
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.oracle_tables import Bench

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]

Ids = dict[int, tuple[int, int]]
"""Row ID and row commit version by the value of `id`."""


def create(spark: DeltaSpark, path: Path, *, files: int, rows: int) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, part INT) USING delta PARTITIONED BY (part) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(
        f"INSERT INTO delta.`{path}` SELECT /*+ REPARTITION({files // 2}) */ id, id % 2 "
        f"FROM range({rows})"
    )


def backfill(store: LocalStore, *, files_per_commit: int) -> BackfillRowIdsResult:
    table = Table(store)
    options = BackfillRowIdsOptions(files_per_commit=files_per_commit)
    plan = backfill_row_ids.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
    return backfill_row_ids.apply(table, plan)


def ids(spark: DeltaSpark, path: Path) -> Ids:
    spark.forget()
    rows = spark.rows(
        "SELECT id, _metadata.row_id AS row, _metadata.row_commit_version AS version "
        f"FROM delta.`{path}`"
    )
    found = [json.loads(row) for row in rows]
    assert len({row["row"] for row in found}) == len(found), "two rows have one row ID"
    return {row["id"]: (row["row"], row["version"]) for row in found}


def shared(before: Ids, after: Ids) -> Ids:
    return {key: after[key] for key in before.keys() & after.keys()}


@pytest.mark.conformance("RT-02", "RT-03", "RT-06", "RT-10", "RT-12")
def test_delta_spark_reads_our_row_ids_and_keeps_them(bench: Bench, tmp_path: Path) -> None:
    spark, path = bench.spark, tmp_path / "table"
    create(spark, path, files=8, rows=80)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 10 = 3")
    result = backfill(LocalStore(str(path)), files_per_commit=3)
    assert (result.status, result.high_water_mark) == ("enabled", 79)

    first = ids(spark, path)
    assert first.keys() == {n for n in range(80) if n % 10 != 3}
    assert all(0 <= row < 80 for row, _ in first.values())

    spark.sql(f"INSERT INTO delta.`{path}` VALUES (100, 0), (101, 1)")
    after = ids(spark, path)
    assert shared(first, after) == first
    assert {after[100][0], after[101][0]} == {80, 81}
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 10 = 5")
    spark.sql(f"UPDATE delta.`{path}` SET id = id + 1000 WHERE id = 7")
    spark.sql(f"OPTIMIZE delta.`{path}`")
    later = ids(spark, path)
    assert len(later) == 72 + 2 - 8
    kept = {key: value for key, value in first.items() if key in later}
    assert shared(kept, later) == kept
    assert later[1007][0] == first[7][0] and later[1007][1] > first[7][1]
    check(LocalStore(str(path)))


class RacedStore(LocalStore):
    """Lets Delta Spark act at the last moment before some commits of ours."""

    def __init__(self, address: str, races: list[Callable[[], None] | None]) -> None:
        super().__init__(address)
        self.races = races

    def put_if_absent(self, path: str, data: bytes) -> Put:
        race = self.races.pop(0) if self.races else None
        if race is not None:
            race()
        return super().put_if_absent(path, data)


@pytest.mark.conformance("RT-14", "RT-07", "DV-13")
def test_commits_of_delta_spark_between_batches_are_kept(bench: Bench, tmp_path: Path) -> None:
    spark, path = bench.spark, tmp_path / "table"
    create(spark, path, files=8, rows=80)

    def run(statement: str) -> Callable[[], None]:
        def race() -> None:
            spark.forget()
            spark.sql(statement.format(table=f"delta.`{path}`"))

        return race

    races = [
        run("INSERT INTO {table} VALUES (100, 0)"),
        None,
        run("INSERT INTO {table} VALUES (101, 1)"),
        run("DELETE FROM {table} WHERE id IN (70, 71, 72, 2)"),
        run("OPTIMIZE {table} WHERE part = 1"),
        run(
            "MERGE INTO {table} t USING (SELECT 4L AS id) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET id = 104 "
        ),
        run("INSERT INTO {table} VALUES (102, 0)"),
    ]
    store = RacedStore(str(path), list(races))
    result = backfill(store, files_per_commit=2)
    assert result.status == "enabled"
    assert len(store.races) == 0
    expected = ({*range(80)} - {70, 71, 72, 2, 4}) | {100, 101, 102, 104}
    assert ids(spark, path).keys() == expected
    check(store)


class SlowStore(LocalStore):
    """Takes its time before each commit, so that statements of Delta Spark see several of ours.

    In the middle, it waits until two more of these are `done`, however long a busy machine needs.
    """

    def __init__(self, root: str, done: list[str]) -> None:
        super().__init__(root)
        self._done, self._commits, self._before = done, 0, 0

    def put_if_absent(self, path: str, data: bytes) -> Put:
        time.sleep(0.2)
        self._commits += 1
        if self._commits == 5:
            self._before = len(self._done)
        if self._commits == 20:
            end = time.monotonic() + 300
            while len(self._done) < self._before + 2 and time.monotonic() < end:
                time.sleep(0.05)
        return super().put_if_absent(path, data)


@pytest.mark.conformance("RT-14")
def test_delta_spark_writes_between_our_batches(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    spark, path = delta_spark, tmp_path / "table"
    create(spark, path, files=40, rows=400)
    table = f"delta.`{path}`"
    failures: list[str] = []
    done: list[str] = []
    finished = threading.Event()

    def write() -> None:
        number = 0
        while not finished.is_set() or number < 4:
            number += 1
            statement = (
                f"INSERT INTO {table} VALUES ({1000 + number}, 0)",
                f"DELETE FROM {table} WHERE id = {number}",
                f"UPDATE {table} SET id = {2000 + number} WHERE id = {number}",
                f"OPTIMIZE {table} WHERE part = {number % 2}",
            )[number % 4]
            try:
                spark.sql(statement)
                done.append(statement)
            except Exception as error:
                failures.append(f"{statement}: {str(error).splitlines()[0]}")

    expected = set(range(400))
    thread = threading.Thread(target=write)
    thread.start()
    try:
        result = backfill(SlowStore(str(path), done), files_per_commit=1)
    finally:
        finished.set()
        thread.join(timeout=500)
    if result.status == "incomplete":
        assert backfill(LocalStore(str(path)), files_per_commit=5).status == "enabled"
    for statement in done:
        words = statement.split()
        match words[0]:
            case "INSERT":
                expected.add(int(words[4].strip("(,")))
            case "DELETE":
                expected.discard(int(words[-1]))
            case "UPDATE":
                expected.discard(int(words[-1]))
                expected.add(int(words[5]))
    found = ids(spark, path)
    assert found.keys() == expected, failures
    assert not [each for each in failures if "ConcurrentAppend" in each], failures
    names = [
        action["commitInfo"]["operation"]
        for _, actions in commits(LocalStore(str(path)))
        for action in actions
        if "commitInfo" in action
    ]
    ours = [at for at, name in enumerate(names) if name == "ROW TRACKING BACKFILL"]
    between = names[ours[0] : ours[-1]]
    assert len(set(between)) > 1, "Delta Spark wrote nothing in between"
    check(LocalStore(str(path)), others_may_renumber=True)
