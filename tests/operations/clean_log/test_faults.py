"""Wherever a clean-up stops, every version that is to stay opens, and the next run ends it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import (
    LogFileKind,
    commit_name,
    multipart_checkpoint_name,
    parse_log_file_name,
)
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.faults import every_fault
from tests.support.faults.every_fault import Files, files_of, play_faults
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash
from tests.support.logs.checkpointing import as_checkpointed, state_of
from tests.support.tables.actions import add, features, metadata, remove
from tests.support.tables.table_builder import LOG, UUID, TableBuilder

pytestmark = pytest.mark.cases

FIRST = datetime(2024, 3, 1, 12, tzinfo=UTC)
NOW = FIRST + timedelta(days=40)
CUT_OFF = 5


def build() -> Files:
    """Nine versions, a day apart but for the newest; cut off at the V2 checkpoint of version 5."""
    table = TableBuilder()
    table.commit([features("v2Checkpoint"), metadata(), add("f0")], at_ms=epoch_millis(FIRST))
    for version in range(1, 9):
        later = timedelta(days=version if version < 6 else version + 20)
        lines = [add(f"f{version}"), remove(f"f{version - 1}")]
        table.commit(lines, at_ms=epoch_millis(FIRST + later))
    for version in range(8):
        table.checksum(version, {})
    table.checkpoint(1)
    table.checkpoint(2, parts=2)
    table.write(multipart_checkpoint_name(3, 1, 2), b"x")
    table.v2_checkpoint(4, sidecars=2, uuid=f"{UUID[:-1]}4")
    table.v2_checkpoint(5, sidecars=2, uuid=f"{UUID[:-1]}5")
    table.v2_checkpoint(7, sidecars=1, uuid=f"{UUID[:-1]}7", encoding="parquet")
    for first, last in ((0, 3), (4, 6), (6, 7)):
        table.compaction(first, last)
    table.write(f"_staged_commits/{4:020}.{UUID}.json", b"{}")
    table.write(f".{commit_name(1)}.crc", b"x")
    table.write(f".{commit_name(9)}.{UUID}.tmp", b"x")
    table.hint(4)
    return files_of(table.store)


def store_of(files: Files) -> MemoryStore:
    return every_fault.store_of(files, now_ms=lambda: epoch_millis(NOW))


def clean(store: Store) -> clean_log.CleanLogResult:
    table = Table(store)
    return clean_log.apply(
        table,
        clean_log.plan(table.snapshot(), context=RunContext.at(NOW)),
        context=RunContext.at(NOW),
    )


def commits(paths: Iterable[str]) -> list[int]:
    files = [parse_log_file_name(path.removeprefix(f"{LOG}/")) for path in paths]
    return sorted(f.version or 0 for f in files if f.kind is LogFileKind.COMMIT)


class World:
    """The table, and what every version of it holds."""

    def __init__(self) -> None:
        self.files = build()
        table = Table(store_of(self.files))
        self.states = [as_checkpointed(state_of(table.snapshot(version=v))) for v in range(9)]
        store = store_of(self.files)
        self.planned = clean_log.plan(Table(store).snapshot(), context=RunContext.at(NOW))
        assert self.planned.oldest_version == CUT_OFF
        assert clean(store).status == "cleaned"
        self.cleaned = set(files_of(store))
        self._sound: set[frozenset[str]] = set()

    def check(self, store: Store) -> None:
        left = files_of(store)
        kept = {path for path in self.cleaned if path in self.files}
        assert kept <= set(left), "something went that was to stay"
        found = commits(left)
        assert found == list(range(found[0], 9)), "the log has a gap"
        if frozenset(left) in self._sound:
            return
        self._sound.add(frozenset(left))
        for version in range(CUT_OFF, 9):
            # Nothing that is left may mislead a reader, whatever the hint says.
            for hintless in (False, True):
                copy = store_of(left)
                if hintless:
                    copy.delete(f"{LOG}/_last_checkpoint")
                snapshot = Table(copy).snapshot(version=version)
                assert as_checkpointed(state_of(snapshot)) == self.states[version]
        again = store_of(left)
        assert clean(again).status in ("cleaned", "nothing-to-do")
        later = set(files_of(again)) - self.cleaned
        assert all(path.endswith(".tmp") for path in later), "the next run leaves something behind"


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.mark.conformance("CLEAN-10", "CLEAN-11", "CPROT-04", "CKPT-28", "LAST-02")
def test_a_fault_at_any_step_leaves_every_promised_version(world: World, count_cases: Any) -> None:
    played = 0
    for outcome in play_faults(clean, lambda: store_of(world.files)):
        played += 1
        if outcome.is_new:
            world.check(outcome.store)
    count_cases("faults of a log clean-up", played)


@pytest.mark.conformance("CLEAN-11")
def test_the_order_of_deletions_keeps_the_log_complete(world: World) -> None:
    trial = FaultStore(store_of(world.files))
    clean(trial)
    deleted = [step.path for step in trial.trace if step.kind == "delete"][1:]
    assert len(deleted) == len(set(deleted)) == sum(group.count for group in world.planned.groups)
    store = store_of(world.files)
    for path in deleted:
        store.delete(path)
        world.check(store)


def test_two_that_run_at_once_delete_the_same(world: World) -> None:
    """The second has planned before the first begins, and goes to work as files vanish."""
    trial = FaultStore(store_of(world.files))
    clean(trial)
    for at, step in enumerate(trial.trace):
        if step.kind not in ("delete", "put", "put_if_absent", "create"):
            continue
        store = store_of(world.files)
        with suppress(SimulatedCrash):
            clean(FaultStore(store, at=at, fault=Fault.CRASH_BEFORE))
        with suppress(DeltaMaintenanceError):
            clean_log.apply(Table(store), world.planned, context=RunContext.at(NOW))
        world.check(store)
