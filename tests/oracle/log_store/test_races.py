"""Spark drivers with our log store, `deltalake` and our verbs race for the commits of one table.

`DELTA_MAINTENANCE_STORE_RACE_SECONDS` is the length of the race in seconds, with two drivers and a
kill every six seconds; by default a short race with one driver. `SEED` plays the same dice again.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from delta_maintenance import DeltaTable, open_table
from delta_maintenance.protocol.actions import DeletionVectorDescriptor, load
from delta_maintenance.submission.log_store import JAR
from tests.oracle.conftest import JARS
from tests.support.emulators.s3_server import S3Server
from tests.support.oracle.delta_spark import DeltaSpark, OracleUnavailable, decode
from tests.support.oracle.s3a import LOG_STORE_OF_S3A, s3a_jars, s3a_packages, s3a_settings
from tests.support.rewrites.table_rows import live_adds
from tests.support.servers.maven import JarUnavailable
from tests.support.store_races.accounts import Account, compare, expected_rows, read_acts, read_log
from tests.support.store_races.processes import EXPIRED_IDS, Place, read_by_deltalake, start
from tests.support.store_races.proxy import RaceProxy
from tests.support.store_races.race import DRIVER_IDS, SparkDriver, StartDriver, StoreRace

GIVEN = os.environ.get("DELTA_MAINTENANCE_STORE_RACE_SECONDS")
SECONDS = float(GIVEN or "30")
DRIVERS, KILLS = (2, round(SECONDS / 6)) if GIVEN else (1, 6)

pytestmark = [pytest.mark.timeout(900 + SECONDS)]

CONDITIONAL = ("--other-writers", "conditional_put")
LOCAL = ("--engine", "local")
EXPIRE = (
    *("expire", "at", "--older-than", "3650 days", "--mixed", "deletion-vectors"),
    *("--allow-large-delete", *CONDITIONAL),
)
VERBS = {
    ("optimize", "--workers", "1", *LOCAL, *CONDITIONAL): 5,
    ("purge", "--workers", "1", *LOCAL, *CONDITIONAL): 3,
    EXPIRE: 3,
    ("recompute-stats", "--all", *LOCAL, *CONDITIONAL): 1,
    ("set-properties", "--set", "race.run=1", *CONDITIONAL): 1,
    ("set-properties", "--set", "race.run=2", *CONDITIONAL): 1,
    ("checkpoint", *LOCAL): 1,
    ("compact-log",): 1,
    ("vacuum", *LOCAL): 1,
}
GUARD = ("--other-writers", "spark", "--quiet", "0s")
GUARDED_VERBS = {
    ("optimize", "--workers", "1", *LOCAL, *GUARD): 2,
    ("set-properties", "--set", "race.run=1", *GUARD): 1,
    ("set-properties", "--set", "race.run=2", *GUARD): 1,
}
ROUNDS = 10 if GIVEN else 2
BACKFILL = ("backfill-row-ids", *LOCAL, *CONDITIONAL)
PROPERTIES = "'delta.enableDeletionVectors' = 'true'"


@pytest.fixture
def start_driver(s3_server: S3Server, tmp_path: Path) -> Iterator[StartDriver]:
    """Starts Spark drivers with our log store for `s3a:`, and that of Delta Lake for `s3:`."""
    try:
        jars = ",".join(map(str, (*s3a_jars(JARS / "s3a"), JAR)))
    except JarUnavailable as reason:
        pytest.skip(f"NO DELTA SPARK WITH S3A: {reason}")
    numbers = itertools.count()
    resolved: dict[str, str] = {}

    def start_one(name: str) -> DeltaSpark:
        scratch = tmp_path / f"{name}.{next(numbers)}"
        scratch.mkdir()
        settings = {
            **s3a_settings(s3_server),
            **LOG_STORE_OF_S3A,
            "spark.jars": jars,
            "spark.master": "local[1]",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -Duser.timezone=UTC",
            "spark.hadoop.fs.s3a.access.key": name,
            **resolved,
        }
        spark = DeltaSpark(jars=JARS, scratch=scratch, settings=settings, packages=s3a_packages())
        # To resolve the packages again would take a third of the time of a start.
        resolved.update({"spark.jars": spark.jars(), "spark.jars.packages": ""})
        return spark

    yield start_one


@pytest.fixture
def race(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path, start_driver: StartDriver
) -> Iterator[StoreRace]:
    """A table that one driver has created, and the writers that are to race for it."""
    seed = int(os.environ.get("SEED", time.time_ns()))
    print(f"SEED={seed}")
    dice = random.Random(seed)
    folder = tmp_path / "accounts"
    folder.mkdir()
    place = Place(
        table=f"s3://{s3_bucket}/table", folder=folder, storage_options=s3_server.storage_options
    )
    drivers = [
        SparkDriver(
            name=f"spark-{number}",
            table=place.table.replace("s3:", "s3a:"),
            account=Account(folder, f"spark-{number}"),
            dice=random.Random(f"{seed} {number}"),
            start=start_driver,
            last_id=number * DRIVER_IDS,
        )
        for number in range(1, DRIVERS + 1)
    ]
    race = StoreRace(
        place=place, proxy=RaceProxy(dice=dice), drivers=drivers, verbs=VERBS, dice=dice
    )
    try:
        drivers[0].create(PROPERTIES)
        for driver in drivers:
            driver.ready()
        s3_server.intercept = race.proxy
        yield race
    except OracleUnavailable as reason:
        pytest.skip(f"NO DELTA SPARK WITH S3A: {reason}")
    finally:
        race.close()


def has_enough_commits(race: StoreRace) -> bool:
    """Whether each kind of writer has committed to the table that was created."""
    acts = read_acts(race.place.folder)
    commits = Counter(
        act.writer.partition("-")[0]
        for act in acts
        if act.outcome == "committed" and act.kind != "create"
    )
    return all(commits[role] >= 2 for role in ("spark", "deltalake", "ours"))


def rows_of_store(store: Any) -> list[list[int]]:
    """The rows by a replay of the commits alone."""
    rows = []
    for path, add in live_adds(store).items():
        data = pq.ParquetFile(io.BytesIO(store.read(unquote(path)))).read(["id", "v"])
        vector = add.get("deletionVector")
        gone = (
            set(load(DeletionVectorDescriptor.from_json(vector), store.read)) if vector else set()
        )
        pairs = zip(*(column.to_pylist() for column in data.columns), strict=True)
        rows += [list(pair) for at, pair in enumerate(pairs) if at not in gone]
    return sorted(rows)


def test_no_commit_is_lost_or_made_twice(
    race: StoreRace, count_cases: Callable[[str, int], None]
) -> None:
    race.last_verbs = (BACKFILL,)
    race.run(SECONDS, KILLS, enough=lambda: has_enough_commits(race))
    status, _ = race.run_alone(*EXPIRE)
    assert status == 0
    place = race.place
    acts, table = read_acts(place.folder), open_table(place.table, place.storage_options)
    commits = read_log(table.store)
    logged = {commit.mark for commit in commits}
    resolved = Counter(act.mark in logged for act in acts if act.outcome == "unknown")
    unknown = {"in the log": resolved[True], "not in the log": resolved[False]}
    print(json.dumps({"versions": len(commits), "unknown": unknown, **race.figures()}, indent=1))
    status, examination = race.run_alone("fsck")
    findings = [f for f in examination["findings"] if f["severity"] == "corrupt"]
    assert (status, findings) == (0, []), findings
    differences = compare(acts, commits)
    assert not differences, differences
    expected = sorted([row, value] for row, value in expected_rows(acts, commits).items())
    expected = [row for row in expected if row[0] < EXPIRED_IDS]
    history = [[commit.version, commit.operation] for commit in reversed(commits)]

    assert rows_of_store(table.store) == expected
    files = table.snapshot().live_files().to_pylist()
    assert sorted(file["path"] for file in files) == sorted(live_adds(table.store))
    ours = DeltaTable(place.table, storage_options=dict(place.storage_options)).history()
    assert [[entry.version, entry.operation] for entry in ours] == history

    driver = race.drivers[0]
    spark = driver.ready()
    spark.forget()
    lines = map(decode, spark.rows(f"SELECT id, v FROM delta.`{driver.table}`"))
    assert sorted([row["id"], row["v"]] for row in lines) == expected
    by_spark = spark.history(driver.table)
    assert [[commit["version"], commit["operation"]] for commit in by_spark] == history

    reader = start(read_by_deltalake, place)
    reader.join(300)
    assert reader.exitcode == 0
    answer = json.loads((place.folder / "deltalake.json").read_text())
    assert answer["rows"] == expected
    assert answer["history"] == history
    table.store.close()
    count_cases("commits that raced on S3", len(commits))


def named_by(examination: Any) -> set[str]:
    """The transactions of the commits that `fsck` calls overwritten."""
    return {
        finding["path"].split(".")[-2]
        for finding in examination["findings"]
        if finding["kind"] in ("overwritten-commit", "needed-overwritten-commit")
    }


def test_without_the_log_store_commits_are_lost(race: StoreRace) -> None:
    """So the test above can fail. The guard names each lost commit of ours, and no other."""
    [driver, *unused] = race.drivers
    race.drivers = [driver]
    for unused_driver in unused:
        unused_driver.close()
    # Others would conflict with most commits that come before the existence check.
    driver.table, driver.kinds = race.place.table, ("append",)
    race.proxy.holds, race.proxy.faults = "spark", {}
    race.verbs, race.slots, race.appends_by_deltalake = GUARDED_VERBS, 1, False
    # What Delta Spark has overwritten can contradict what follows it.
    race.statuses_allowed |= {5}
    store = open_table(race.place.table, race.place.storage_options).store
    acknowledged = set[str]()
    for number in range(1, ROUNDS + 1):
        race.run(0, 0, enough=lambda number=number: len(race.proxy.overwritten) >= number)
        acts, commits = read_acts(race.place.folder), read_log(store)
        logged = {commit.mark for commit in commits}
        lost = {act.mark for act in acts if act.outcome == "committed"} - logged
        assert len(lost) == len(race.proxy.overwritten)
        _, examination = race.run_alone("fsck")
        assert named_by(examination) == lost - acknowledged
        status, _ = race.run_alone("fsck", "--forget-overwritten-commits")
        assert status == 0
        acknowledged |= lost
    _, examination = race.run_alone("fsck")
    assert named_by(examination) == set()
    race.slots, race.appends_by_deltalake = 0, True
    race.run(0, 0, enough=lambda: len(race.proxy.overwritten) > ROUNDS)
    acts, commits = read_acts(race.place.folder), read_log(store)
    differences = compare(acts, commits)
    store.close()
    print(json.dumps({"lost": list(differences.lost), **race.figures()}, indent=1))
    assert len(differences.lost) == len(race.proxy.overwritten)
    assert any(line.startswith("deltalake") for line in differences.lost)
    assert not (differences.doubled or differences.denied or differences.unaccounted)
