"""A kept version has the same rows after every operation of a random sequence: for this library,
for `deltalake`, and for Delta Spark.

Nothing else protects it: vacuums and clean-ups have no retention. `DELTA_MAINTENANCE_SEQUENCES`
sets the number of sequences.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from delta_maintenance import clock, open_table
from delta_maintenance.errors import NotADeltaTableError, RefusedError
from delta_maintenance.operations import (
    checkpoint,
    clean_log,
    compact_log,
    expire,
    keep_version,
    optimize,
    purge,
    set_properties,
    vacuum,
)
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.clean_log import CleanLogOptions
from delta_maintenance.operations.compact_log import CompactLogOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.keep_version import KeepVersionOptions
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.table.read import Table
from tests.simulation.promises import SCHEMA, ids_in
from tests.support.oracle.delta_spark import DELTA_RELEASE, DeltaSpark
from tests.support.rewrites.data_files import inline_vector, removed
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.table_builder import TableBuilder

SEQUENCES = int(os.environ.get("DELTA_MAINTENANCE_SEQUENCES", "6"))
STEPS = 20
AGE = timedelta(days=20)
LATER = timedelta(minutes=2)
"""Log retention boundaries are full minutes."""
FLAGS: dict[str, Any] = {"allow_short_retention": True, "no_other_writers": True}


@dataclass
class World:
    """A table, and the rows of its kept version."""

    path: Path
    seed: int
    random: random.Random = field(init=False)
    table: Table = field(init=False)
    kept: int | None = None
    ids: list[int] = field(default_factory=list)
    next_id: int = 0
    told: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.table = open_table(str(self.path))
        properties = {"delta.enableDeletionVectors": "true"}
        self._commit(
            [
                features("deletionVectors", "v2Checkpoint"),
                metadata(schema=SCHEMA, configuration=properties),
            ]
        )

    # Writers

    def append(self) -> None:
        """Adds some files."""
        self._commit([self._new_file() for _ in range(self.random.randint(1, 3))])

    def delete(self) -> None:
        """Removes a file, or marks a row of it."""
        scan = self.table.snapshot().log.scan()
        adds = [row for batch in scan for row in batch.adds.to_pylist()]
        unmarked = (each for each in adds if each.get("deletionVector") is None)
        live = sorted(unmarked, key=lambda add: str(add["path"]))
        if not live:
            return
        old = _plain(self.random.choice(live))
        rows = json.loads(old["stats"])["numRecords"]
        actions = [{"remove": {**removed(old), "deletionTimestamp": _now_ms()}}]
        if self.random.random() < 0.6 and rows > 1:
            vector = inline_vector([self.random.randrange(rows)])
            actions.append({"add": {**old, "deletionVector": vector}})
        self._commit(actions)

    # Maintenance

    def optimize(self) -> None:
        """Merges all files."""
        options = OptimizeOptions(full=True, workers=1)
        optimize.apply(self.table, optimize.plan(self.table.snapshot(), options, self._now()))

    def purge(self) -> None:
        """Rewrites files with deleted rows."""
        options = PurgeOptions(workers=1)
        purge.apply(self.table, purge.plan(self.table.snapshot(), options, self._now()))

    def expire(self) -> None:
        """Removes old rows."""
        mixed = self.random.choice(("leave", "deletion-vectors", "rewrite"))
        options = ExpireOptions(
            column="day", older_than=AGE, mixed=mixed, workers=1, allow_large_delete=True
        )
        done = expire.apply(self.table, expire.plan(self.table.snapshot(), options, self._now()))
        self.told["commits of expire"] += done.num_commits

    def checkpoint(self) -> None:
        """Writes a checkpoint of any kind."""
        kind = self.random.choice(("classic", "v2-classic", "v2-json", "v2-parquet"))
        options = CheckpointOptions(kind=kind)
        checkpoint.apply(self.table, checkpoint.plan(self.table.snapshot(), options))

    def compact_log(self) -> None:
        """Writes log compactions."""
        options = CompactLogOptions(commits_per_file=3, partial=self.random.random() < 0.5)
        compact_log.apply(self.table, compact_log.plan(self.table.snapshot(), options))

    def clean_log(self) -> None:
        """Deletes the history before the newest checkpoint, or before the kept version."""
        options = CleanLogOptions(log_retention=timedelta(), to_the_minute=True, **FLAGS)
        planned = clean_log.plan(self.table.snapshot(), options, self._later())
        done = clean_log.apply(self.table, planned)
        self.told["deleted files of the log"] += sum(group.deleted for group in done.groups)
        self.told["held files of the log"] += sum(each.files for each in done.held)

    def vacuum(self) -> None:
        """Deletes everything that the newest version does not need."""
        mode = self.random.choice(("full", "full", "lite"))
        options = VacuumOptions(retention=timedelta(), mode=mode, **FLAGS)
        try:
            planned = vacuum.plan(self.table.snapshot(), options, self._later())
        except RefusedError:
            # Commits that no vacuum went through were cleaned up.
            assert mode == "lite"
            return
        done = vacuum.apply(self.table, planned)
        assert done.status != "partly", done
        self.told["deleted data files"] += done.deleted
        self.told["held data files"] += sum(each.files for each in done.held)

    # The kept version

    def keep(self) -> None:
        """Keeps the newest version."""
        options = KeepVersionOptions(name="audit")
        done = keep_version.apply(
            self.table, keep_version.plan(self.table.snapshot(), options, self._now())
        )
        self.kept = done.kept.version
        self.ids = sorted(ids_in(self.table.snapshot()))
        assert self.ids

    def check(self) -> None:
        """Opens the kept version with two libraries."""
        if self.kept is None:
            return
        assert sorted(ids_in(self.table.snapshot(version=self.kept))) == self.ids
        read = DeltaTable(str(self.path), version=self.kept)
        rows = QueryBuilder().register("t", read).execute("SELECT id FROM t").read_all()
        assert sorted(pa.table(rows)["id"].to_pylist()) == self.ids

    def play(self) -> None:
        """Plays a sequence, and checks the kept version after each step."""
        for _ in range(self.random.randint(2, 4)):
            self.append()
        self.delete()
        self.checkpoint()
        at = self.random.randrange(STEPS // 2)
        for step in range(STEPS):
            if step == at:
                self.append()
                self.keep()
            (act,) = self.random.choices([*_ACTS], weights=[*_ACTS.values()])
            act(self)
            try:
                self.check()
            except Exception as error:
                raise AssertionError(f"after {act.__name__}, step {step}") from error

    # Parts

    def _commit(self, actions: list[Any]) -> None:
        builder = TableBuilder(self.table.store)
        try:
            version = self.table.latest_version() + 1
        except NotADeltaTableError:
            version = 0
        builder.commit(actions, version=version, at_ms=_now_ms())

    def _new_file(self) -> Any:
        count = self.random.randint(1, 5)
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        days = [self._day() for _ in ids]
        sink = io.BytesIO()
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "day": pa.array(days)}), sink)
        path = f"part-{ids[0]:05}-{self.seed:08}-0000-4000-8000-{ids[0]:012}-c000.snappy.parquet"
        self.table.store.put(path, sink.getvalue())
        stats = {
            "numRecords": count,
            "minValues": {"id": ids[0], "day": str(min(days))},
            "maxValues": {"id": ids[-1], "day": str(max(days))},
            "nullCount": {"id": 0, "day": 0},
        }
        size = len(sink.getvalue())
        return add(path, size=size, modificationTime=_now_ms(), stats=json.dumps(stats))

    def _day(self) -> date:
        return (datetime.now(UTC) - timedelta(days=self.random.randint(0, 40))).date()

    @staticmethod
    def _now() -> RunContext:
        return RunContext.at(clock.now())

    @staticmethod
    def _later() -> RunContext:
        return RunContext.at(clock.now() + LATER)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The add of a row, with its partition values as an object."""
    kept = ("path", "size", "modificationTime", "stats")
    return {**{name: row[name] for name in kept}, "partitionValues": {}, "dataChange": True}


def _now_ms() -> int:
    return clock.epoch_millis(clock.now())


_ACTS: dict[Callable[[World], None], int] = {
    World.append: 3,
    World.delete: 3,
    World.optimize: 2,
    World.purge: 1,
    World.expire: 2,
    World.checkpoint: 3,
    World.compact_log: 2,
    World.clean_log: 3,
    World.vacuum: 3,
}


@pytest.mark.cases
def test_a_kept_version_has_its_rows_after_every_operation(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    told = Counter[str]()
    for seed in range(SEQUENCES):
        world = World(tmp_path / str(seed), seed)
        try:
            world.play()
        except AssertionError as error:
            raise AssertionError(f"sequence {seed}") from error
        told.update(world.told)
    for what, number in told.items():
        count_cases(f"sequences with a kept version, {what}", number)
    assert all(number > 0 for number in told.values()) and len(told) == 5, told


@pytest.mark.oracle
@pytest.mark.spark
def test_delta_spark_opens_the_kept_version_at_the_end(
    delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    for seed in (1001, 1002, 1003):
        world = World(tmp_path / str(seed), seed)
        world.play()
        delta_spark.forget()
        query = f"SELECT id FROM delta.`{world.path}` VERSION AS OF {world.kept}"
        found = [json.loads(row)["id"] for row in delta_spark.rows(query)]
        assert sorted(found) == world.ids
        latest = [json.loads(row)["id"] for row in delta_spark.rows(query.partition(" VERSION")[0])]
        assert sorted(latest) == sorted(ids_in(world.table.snapshot()))


@pytest.mark.oracle
@pytest.mark.spark
def test_delta_spark_reads_an_old_version_by_each_remedy_of_the_plan(
    delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    world = World(tmp_path / "table", 1001)
    world.append()
    world.delete()
    old = clock.now().timestamp() - 20 * 86_400
    for number, commit in enumerate(sorted((world.path / "_delta_log").glob("*.json"))):
        os.utime(commit, (old + number, old + number))
    options = KeepVersionOptions(name="audit", keep=1)
    planned = keep_version.plan(world.table.snapshot(), options, world._now())
    [note] = [each for each in planned.notes if "Delta Spark 4.4" in each]
    assert f"from {clock.instant(int(old + 1) * 1000 + 7 * 86_400_000):%Y-%m-%dT%H:%M}" in note
    keep_version.apply(world.table, planned, world._now())
    query = f"SELECT id FROM delta.`{world.path}` VERSION AS OF 1"
    ids = sorted(ids_in(world.table.snapshot(version=1)))

    def read_by_spark() -> list[int]:
        delta_spark.forget()
        return sorted(json.loads(row)["id"] for row in delta_spark.rows(query))

    table = DeltaTable(world.path, version=1)
    rows = QueryBuilder().register("t", table).execute("SELECT id FROM t").read_all()
    assert sorted(pa.table(rows)["id"].to_pylist()) == ids
    if tuple(map(int, DELTA_RELEASE.split("."))) >= (4, 4):
        with pytest.raises(Exception, match="deletedFileRetentionDuration"):
            read_by_spark()
    setting = next(
        word for word in note.split() if word.startswith("spark.databricks.delta.vacuum")
    )
    with delta_spark.setting(setting, "false"):
        assert read_by_spark() == ids
    longer = SetPropertiesOptions(properties={"delta.deletedFileRetentionDuration": "30 days"})
    set_properties.apply(world.table, set_properties.plan(world.table.snapshot(), longer))
    assert read_by_spark() == ids
    planned = keep_version.plan(world.table.snapshot(), options, world._now())
    assert f"from {clock.instant(int(old + 1) * 1000 + 30 * 86_400_000):%Y-%m-%d}" in str(
        planned.notes
    )
