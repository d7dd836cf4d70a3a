"""Incremental checkpoints beside clean-ups, ours and one like Delta Spark's, in any order.

Two keepers write checkpoints that take sidecars over while two cleaners delete what no checkpoint
of theirs refers to, and any of them may die at any request. `DELTA_MAINTENANCE_SIDECAR_ROUNDS`
sets the number of rounds, `DELTA_MAINTENANCE_SIDECAR_SEED` the seed of the first one.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.operations import checkpoint, clean_log
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import LogFileKind, commit_name, parse_log_file_name
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Checkpoint, Table, list_log
from tests.simulation.spark_clean_up import DAY_MS, SIDECARS, spark_clean_up
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash
from tests.support.stores.interleaving import Schedule, ScheduledStore, single_threaded
from tests.support.tables.actions import Action, add, commit_info, features, metadata, remove
from tests.support.tables.table_builder import EPOCH_MS, LOG, log_text

ROUNDS = int(os.environ.get("DELTA_MAINTENANCE_SIDECAR_ROUNDS", "15"))
FIRST_SEED = int(os.environ.get("DELTA_MAINTENANCE_SIDECAR_SEED", "0"))
RETENTION_DAYS = 2
PROPERTIES = {
    "delta.checkpointPolicy": "v2",
    "delta.logRetentionDuration": f"interval {RETENTION_DAYS} days",
    "delta.deletedFileRetentionDuration": f"interval {RETENTION_DAYS} days",
}
TASKS = 3
OLD = 0.1
"""The share of commits that are past their retention as soon as they are made."""


class Round:
    """One table with an old history, and all its processes."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed, persistence=random.Random(seed).choice((0.0, 0.6, 0.95)))
        self.chance = self.schedule.random
        self.now_ms = EPOCH_MS
        self.store = MemoryStore()
        self.store.now_ms = lambda: self.now_ms
        self.live: list[str] = []
        self.states: list[frozenset[str]] = []
        self.endings = Counter[str]()
        self.numbers = 0

    def play(self) -> None:
        self.begin()
        for work in (self.keep, self.keep, self.clean, self.clean_like_spark, self.write):
            self.schedule.begin(work)
        with single_threaded():
            self.schedule.run()
            self.check(self.store)
            # Afterwards, the next checkpoint completes, and its result is complete.
            self.checkpoint(self.store)
            self.now_ms += 5 * DAY_MS
            self.clean_up(self.store)
            self.check(self.store)

    def begin(self) -> None:
        supported = features("v2Checkpoint")
        self.commit([supported, metadata(configuration=PROPERTIES)], adds=9)
        for version in range(1, self.chance.randint(4, 7)):
            self.now_ms += self.chance.choice((DAY_MS // 2, 2 * DAY_MS))
            self.commit([])
            if version == 1 or self.chance.random() < 0.5:
                self.checkpoint(self.store)
        self.now_ms += 3 * DAY_MS if self.chance.random() < OLD else 0

    def commit(self, lines: list[Action], *, adds: int = 2, store: Store | None = None) -> None:
        lines = [commit_info(), *lines]
        for _ in range(min(len(self.live), self.chance.choice((0, 1, 2)))):
            gone = self.live.pop(self.chance.randrange(len(self.live)))
            lines.append(remove(gone, deletionTimestamp=self.now_ms))
        for _ in range(adds):
            self.numbers += 1
            self.live.append(f"f{self.numbers}")
            lines.append(add(f"f{self.numbers}"))
        path = f"{LOG}/{commit_name(len(self.states))}"
        self.states.append(frozenset(self.live))
        if store is None:
            self.store.put_if_absent(path, log_text(lines))
            return
        # Sometimes past its retention at once: a cleaner may keep the next checkpoint alone, while
        # another one is on its way. Only younger versions get incremental ones.
        age_ms = 3 * DAY_MS if self.chance.random() < OLD else 0
        now_ms, self.now_ms = self.now_ms, self.now_ms - age_ms
        self.store.put_if_absent(path, log_text(lines))
        self.now_ms = now_ms
        self.schedule.pause()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def new_id(self) -> str:
        self.numbers += 1
        return f"{self.chance.getrandbits(32):08x}-0000-4000-8000-{self.numbers:012d}"

    def keep(self) -> None:
        self.attempt("checkpoint", self.checkpoint, times=2 * TASKS)

    def clean(self) -> None:
        self.attempt("clean-log", self.clean_up)

    def clean_like_spark(self) -> None:
        self.attempt("spark", self.spark_cleans_up)

    def write(self) -> None:
        for _ in range(4 * TASKS):
            for _ in range(self.chance.randrange(30)):
                self.schedule.pause()
            self.commit([], store=self.store)
            self.now_ms += self.chance.choice((0, 0, DAY_MS // 4))

    def attempt(self, name: str, work: Callable[[Store], str], times: int = TASKS) -> None:
        for _ in range(times):
            store: Any = ScheduledStore(self.store, self.schedule)
            if self.chance.random() < 0.25:
                fault = self.chance.choice((Fault.CRASH_BEFORE, Fault.CRASH_AFTER))
                store = FaultStore(store, at=self.chance.randrange(90), fault=fault)
            try:
                ending = work(store)
            except SimulatedCrash:
                ending = "crashed"
            except RefusedError:
                ending = "refused"
            except DeltaMaintenanceError as error:
                # A log that changes while it is read may have to be read again by the caller.
                ending = type(error).__name__
            self.endings[f"{name}: {ending}"] += 1

    def checkpoint(self, store: Store) -> str:
        table = Table(store)
        snapshot = table.snapshot()
        # One that takes nothing over leaves the sidecars of its predecessors to the cleaners.
        ways = ("never",) if self.chance.random() < 0.4 else ("always", "auto")
        for how in ways:
            options = CheckpointOptions(actions_per_sidecar=3, incremental=how)
            try:
                plan = checkpoint.plan(snapshot, options, context=RunContext.at(self.now()))
            except RefusedError:
                continue
            result = checkpoint.apply(
                table,
                plan,
                context=RunContext.at(self.now(), new_id=self.new_id),
                snapshot=snapshot,
            )
            return f"{result.status} {'incremental' if result.incremental else 'full'}"
        raise AssertionError("auto is never refused")

    def clean_up(self, store: Store) -> str:
        table = Table(store)
        plan = clean_log.plan(table.snapshot(), context=RunContext.at(self.now()))
        return clean_log.apply(
            table, plan, context=RunContext.at(self.now(), new_id=self.new_id)
        ).status

    def spark_cleans_up(self, store: Store) -> str:
        done = [*spark_clean_up(store, now_ms=self.now_ms, retention_days=RETENTION_DAYS)]
        return done[-1] if done else "nothing"

    def check(self, store: Store) -> None:
        """Checks that every checkpoint is complete, and that every readable version is correct.

        All processes have ended or died.
        """
        there = {status.path for status in store.list_from(SIDECARS)}
        listing = list_log(store)
        for files in listing.checkpoints:
            opened = Checkpoint(store, files, open_sidecars=False)
            missing = set(opened.sidecar_paths) - there
            assert not missing, f"{files.name} has lost {missing}"
        oldest = listing.checkpoints[0].version if 0 not in listing.commits else 0
        for version in range(oldest, len(self.states)):
            found = Table(store).snapshot(version=version).live_files()["path"].to_pylist()
            assert len(found) == len(set(found))
            assert frozenset(found) == self.states[version], version
        hint = json.loads(store.read(f"{LOG}/_last_checkpoint"))
        named = parse_log_file_name(hint["v2Checkpoint"]["path"])
        assert named.kind is LogFileKind.UUID_CHECKPOINT and named.version == hint["version"]


@pytest.mark.conformance("CLEAN-08", "CLEAN-10", "CKPT-25")
def test_no_order_of_checkpoints_and_clean_ups_loses_a_sidecar(
    count_cases: Callable[[str, int], None],
) -> None:
    endings = Counter[str]()
    for seed in range(FIRST_SEED, FIRST_SEED + ROUNDS):
        played = Round(seed)
        try:
            played.play()
        except Exception as error:
            raise AssertionError(f"round {seed}") from error
        endings += played.endings
    for what, number in endings.items():
        count_cases(f"sidecar races, {what}", number)
    assert endings["checkpoint: written incremental"] > ROUNDS
    assert endings["clean-log: cleaned"] and endings["spark: cleaned"]
