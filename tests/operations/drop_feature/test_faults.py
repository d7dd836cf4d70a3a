"""Wherever dropping a feature stops, every version reads as before, and the next run ends it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.operations import drop_feature
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import DropFeaturePlan
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.faults import every_fault
from tests.support.faults.every_fault import Files, files_of, play_faults
from tests.support.faults.fault_store import Fault, FaultStore, faults
from tests.support.logs.checkpointing import State, as_checkpointed, state_of
from tests.support.tables.droppable_tables import TABLES, Clock, comparable, drop, planned


def store_of(files: Files, clock: Clock) -> MemoryStore:
    store = every_fault.store_of(files, now_ms=lambda: 0)
    clock.govern(store)
    return store


class World:
    """A table before its feature is dropped, and what must be true wherever that stops."""

    def __init__(self, feature: str, *, truncate_history: bool) -> None:
        self.feature = feature
        self.options = {"truncate_history": truncate_history, "files_per_commit": 2}
        self.clock = Clock()
        store = TABLES[feature].build().store
        self.clock.govern(store)
        if truncate_history:
            # The first run is over, and so is the retention.
            assert drop(store, self.clock, feature, **self.options).status == "waiting"
            self.clock.pass_by(timedelta(days=1, minutes=1))
        self.files = files_of(store)
        self.plan: DropFeaturePlan = planned(store, self.clock, feature, **self.options)
        table = TABLES[feature]
        end = table.truncated if truncate_history else table.protected
        assert end is not None
        self.end = comparable(end["protocol"])
        self.states = self._states(store)
        trial = FaultStore(store)
        result = drop_feature.apply(Table(trial), self.plan, context=RunContext.at(self.clock))
        self.trace = trial.trace
        self.empty_commits = [entry.operation for entry in Table(store).history()].count(
            "Empty Commit"
        )
        self.oldest = 0 if result.cleaned is None else result.cleaned.oldest_version or 0

    def run(self, store: Store) -> None:
        drop_feature.apply(Table(store), self.plan, context=RunContext.at(self.clock))

    def check(self, store: MemoryStore, *, anew: bool) -> None:
        latest = Table(store).snapshot()
        assert set(state_of(latest).live) == set(self.states[max(self.states)].live)
        if anew:
            result = drop(store, self.clock, self.feature, **self.options)
        else:
            result = drop_feature.apply(Table(store), self.plan, context=RunContext.at(self.clock))
        assert result.status in ("dropped", "nothing-to-do")
        latest = Table(store).snapshot()
        assert comparable(latest.protocol.to_json()) == self.end
        assert set(state_of(latest).live) == set(self.states[max(self.states)].live)
        self._check_versions(store)
        history = Table(store).history()
        assert [entry.version for entry in history] == list(
            range(latest.version, history[-1].version - 1, -1)
        )
        operations = [entry.operation for entry in history]
        assert operations.count("DROP FEATURE") == 1
        assert operations.count("Empty Commit") == self.empty_commits

    def _states(self, store: Store) -> dict[int, State]:
        table = Table(store)
        return {
            version: as_checkpointed(state_of(table.snapshot(version=version)))
            for version in range(table.latest_version() + 1)
        }

    def _check_versions(self, store: Store) -> None:
        for version, state in self.states.items():
            if version >= self.oldest:
                snapshot = Table(store).snapshot(version=version)
                assert as_checkpointed(state_of(snapshot)) == state, version


WHILE_WRITING = (Fault.CRASH_AFTER, Fault.LOST_ANSWER, Fault.CRASH_WITHIN)
CASES = {
    "direct": ("rowTracking", False),
    "domains": ("domainMetadata", False),
    "protect": ("deletionVectors", False),
    "protect-v2": ("v2Checkpoint", False),
    "truncate": ("v2Checkpoint", True),
}


@pytest.mark.conformance("FEAT-14", "CPROT-04", "TXN-02")
@pytest.mark.parametrize("case", CASES)
def test_a_run_after_a_fault_at_any_step_ends_it(case: str, count_cases: Any) -> None:
    feature, truncate_history = CASES[case]
    world = World(feature, truncate_history=truncate_history)
    # What a crash before a write leaves behind is what one after the write before it does, and
    # reads leave nothing behind at all; of their failures a few stand for all.
    cases = [
        (at, fault)
        for at, fault in faults(world.trace)
        if (
            fault in WHILE_WRITING
            if world.trace[at].kind in ("put_if_absent", "put", "create", "delete")
            else fault is Fault.FAILURE and at % 9 == 0
        )
    ]
    looked = 0
    for outcome in play_faults(world.run, lambda: store_of(world.files, world.clock), cases):
        if outcome.is_new:
            world.check(outcome.store, anew=looked % 2 == 0)
            looked += 1
    count_cases(f"faults while dropping, {case}", len(cases))
