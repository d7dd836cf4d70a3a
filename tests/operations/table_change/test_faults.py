"""Wherever a change of protocol or properties stops, it is there as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delta_maintenance.errors import CommitUnknownError
from delta_maintenance.operations import set_properties, upgrade_protocol
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolOptions
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.faults.every_fault import play_faults
from tests.support.faults.fault_store import FaultStore
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, LOG, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(hours=1)


def build() -> TableBuilder:
    table = TableBuilder()
    table.commit([log.protocol(1, 3), log.metadata(configuration={"own": "x"}), log.add("a")])
    table.commit([log.add("b")])
    table.checkpoint()
    table.commit([log.add("c")])
    return table


def store_of(table: TableBuilder) -> MemoryStore:
    store = MemoryStore()
    for status in table.store.list_from(LOG):
        store.now_ms = lambda at=status.modified_ms: at
        store.put(status.path, table.store.read(status.path))
    return store


def state(store: Store) -> Any:
    snapshot = Table(store).snapshot()
    return snapshot.protocol, snapshot.metadata.configuration, snapshot.counts.num_files


def mapping_columns(store: Store) -> str:
    table = Table(store)
    options = SetPropertiesOptions(
        properties={"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"},
        operation_id="task",
    )
    plan = set_properties.plan(table.snapshot(), options, context=RunContext.at(NOW))
    return set_properties.apply(
        table, plan, context=RunContext.at(NOW, sleep=lambda _: None)
    ).status


def upgrading(store: Store) -> str:
    table = Table(store)
    options = UpgradeProtocolOptions(features=("rowTracking",), operation_id="task")
    plan = upgrade_protocol.plan(table.snapshot(), options, context=RunContext.at(NOW))
    return upgrade_protocol.apply(
        table, plan, context=RunContext.at(NOW, sleep=lambda _: None)
    ).status


@pytest.mark.conformance("TXN-02")
@pytest.mark.parametrize("change", [mapping_columns, upgrading])
def test_after_every_fault_the_table_is_unchanged_or_changed_and_a_rerun_completes(
    change: Callable[[Store], str], count_cases: Callable[[str, int], None]
) -> None:
    table = build()
    trial = FaultStore(store_of(table))
    before = state(store_of(table))
    assert change(trial) == "committed"
    after = state(trial)
    assert before != after
    cases = 0
    for outcome in play_faults(change, lambda: store_of(table)):
        cases += 1
        if not outcome.is_new and outcome.result is None:
            continue
        store, where = outcome.store, outcome.where
        reached = state(store)
        assert reached in (before, after), where
        if outcome.result is not None:
            assert (outcome.result, reached) == ("committed", after), where
        rerun = change(store)
        assert rerun == ("nothing-to-do" if reached == after else "committed"), where
        assert state(store) == after
        assert Table(store).snapshot().version == 3, where
        for version in range(3):
            assert Table(store).snapshot(version=version).protocol == before[0]
    count_cases("faults of protocol and property changes", cases)
    assert cases > 10


def test_a_missing_answer_is_not_a_result() -> None:
    class Silent(MemoryStore):
        def put_if_absent(self, path: str, data: bytes) -> Any:
            raise CommitUnknownError("no answer", file=path)

    store = Silent()
    for path, data in ((s.path, build().store.read(s.path)) for s in build().store.list_from(LOG)):
        store.put(path, data)
    with pytest.raises(CommitUnknownError) as caught:
        upgrading(store)
    assert caught.value.version == 3 and caught.value.table == store.root


def test_requests_of_a_commit_without_concurrent_writers() -> None:
    store = FaultStore(store_of(build()))
    table = Table(store)
    options = SetPropertiesOptions(properties={"delta.checkpointInterval": "5"})
    plan = set_properties.plan(table.snapshot(), options, context=RunContext.at(NOW))
    opening = list(store.trace)
    store.trace.clear()
    set_properties.apply(table, plan, context=RunContext.at(NOW))
    assert store.trace[: len(opening)] == opening
    kinds = [step.kind for step in store.trace[len(opening) :]]
    # The commit, the check after it, and at most the checksum.
    assert kinds[:2] == ["put_if_absent", "list_from"] and len(kinds) <= 4
