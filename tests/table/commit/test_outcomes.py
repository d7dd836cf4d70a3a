"""Outcomes of a commit: lost responses, earlier attempts, deleted and damaged commits, faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delta_maintenance.errors import (
    CommitUnknownError,
    CorruptTableError,
    RefusedError,
    StorageError,
)
from delta_maintenance.protocol.commit import Rule
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.table.commit.outcome import AlreadyDone, Conflicted, Landed
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.read import Table
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash, faults
from tests.support.logs.transactions import (
    RacedStore,
    append,
    commit,
    only,
    races,
    snapshot,
    transaction,
)
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder


@pytest.mark.conformance("TXN-02")
def test_a_put_with_a_lost_response_is_recognised(table: TableBuilder) -> None:
    trial = FaultStore(table.store)
    at = len(trial.trace)
    snapshot(table, trial)
    at = len(trial.trace)
    store = FaultStore(table.store, at=at, fault=Fault.LOST_ANSWER)
    outcome = commit(append(table, store=store))
    assert (outcome.version, outcome.attempts) == (1, 1)
    kinds = [step.kind for step in store.trace[at:]]
    assert kinds == ["put_if_absent", "read", "list_from"]


class DoubtfulStore(RacedStore):
    """Loses the response of the first put, which has no effect."""

    doubts = 1

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.races:
            self.races.pop(0)()
        if self.doubts:
            self.doubts -= 1
            raise CommitUnknownError("no answer")
        return super().put_if_absent(path, data)


@pytest.mark.conformance("TXN-02")
def test_no_further_attempt_after_an_unknown_outcome() -> None:
    table = TableBuilder(DoubtfulStore())
    table.commit([log.protocol(), log.metadata()])
    with pytest.raises(CommitUnknownError, match="version 1") as caught:
        commit(append(table))
    assert caught.value.table == table.store.root
    assert caught.value.file == "_delta_log/00000000000000000001.json"
    assert table.names() == ["00000000000000000000.json"]


@pytest.mark.conformance("TXN-02")
def test_an_unknown_outcome_with_a_foreign_commit_is_a_lost_race() -> None:
    table = TableBuilder(DoubtfulStore())
    table.commit([log.protocol(), log.metadata()])
    races(table, [log.commit_info(txnId="other"), log.add("x")])
    outcome = commit(append(table))
    assert (outcome.version, outcome.attempts) == (2, 2)


@pytest.mark.conformance("TXN-02")
def test_a_failed_put_is_a_storage_error(table: TableBuilder) -> None:
    trial = FaultStore(table.store)
    snapshot(table, trial)
    at = len(trial.trace)
    store = FaultStore(table.store, at=at, fault=Fault.FAILURE)
    txn = append(table, store=store)
    # The failure is no answer about this commit of another writer.
    table.commit([log.add("x")])
    with pytest.raises(StorageError) as caught:
        commit(txn)
    assert not isinstance(caught.value, CommitUnknownError)
    assert [step.kind for step in store.trace[at:]] == ["put_if_absent"]
    assert table.names()[1:] == ["00000000000000000001.json"]


@pytest.mark.conformance("TXN-08")
def test_a_zombie_task_finds_its_commit(table: TableBuilder) -> None:
    zombie = append(table, operation_id="run-1")
    assert commit(append(table, operation_id="run-1")).version == 1
    assert commit(zombie) == AlreadyDone(version=1)
    assert commit(append(table, operation_id="run-1")) == AlreadyDone(version=1)
    assert commit(append(table, path="m", operation_id="run-2")).version == 2
    table.commit([log.add("x")], version=3)
    late = append(table, operation_id="run-1", planned_version=0)
    assert commit(late) == AlreadyDone(version=1)
    assert table.names()[-1] == "00000000000000000003.json"


def test_a_plan_with_deleted_later_commits_is_not_applied(table: TableBuilder) -> None:
    for n in range(4):
        table.commit([log.add(f"x{n}")])
    table.checkpoint()
    table.drop("00000000000000000001.json")
    with pytest.raises(RefusedError, match="plan again"):
        commit(append(table, operation_id="run-1", planned_version=0))


@pytest.mark.conformance("TXN-08", "TXN-09")
def test_an_application_transaction_is_recorded_once(table: TableBuilder) -> None:
    def batch(version: int) -> Any:
        txn = append(table, path=f"batch{version}")
        txn.stage_txn("app", version)
        return commit(txn)

    assert batch(7).version == 1
    assert only(table, 1, "txn") == [
        {"appId": "app", "version": 7, "lastUpdated": EPOCH_MS + 3_600_000}
    ]
    assert batch(7) == AlreadyDone(version=1)
    assert batch(6) == AlreadyDone(version=1)
    assert batch(8).version == 2


def test_deleted_concurrent_commits_end_the_attempt(table: TableBuilder) -> None:
    txn = append(table)
    table.commit([log.add("x")])
    table.commit([log.add("y")])
    store = table.store
    assert isinstance(store, RacedStore)

    def clean() -> None:
        table.checkpoint()

    store.races.append(clean)
    real = store.list_from

    def cleaned(directory: str, start: str = "") -> Any:
        table.drop("00000000000000000001.json")
        return real(directory, start)

    store.list_from = cleaned
    outcome = commit(txn)
    assert isinstance(outcome, Conflicted)
    assert outcome.conflict.rule is Rule.LOG_CLEANED


@pytest.mark.parametrize("damage", [b"", b"{", b'{"metaData":{}}\n{"metaData":{}}\n'])
def test_an_unreadable_concurrent_commit_is_an_error(table: TableBuilder, damage: bytes) -> None:
    txn = append(table)
    table.commit_bytes(damage)
    with pytest.raises(CorruptTableError) as caught:
        commit(txn)
    assert caught.value.version == 1


@pytest.mark.conformance("CM-07", "CM-08")
@pytest.mark.parametrize("repairs", [False, True])
def test_nothing_is_committed_on_top_of_contradictory_metadata_unless_it_is_repaired(
    repairs: bool,
) -> None:
    """To map the columns conflicts with no commit. Here, two get the same ID."""
    names = [{"name": name, "type": "long", "nullable": True} for name in "ab"]
    mapping = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "p"}
    plain, mapped = (
        json.dumps({"type": "struct", "fields": [{**each, "metadata": more} for each in names]})
        for more in ({}, mapping)
    )
    table = TableBuilder(RacedStore())
    table.commit([log.protocol(2, 5), log.metadata(schemaString=plain), log.add("a")])
    txn = append(table, repairs=repairs)
    mode = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
    races(table, [log.metadata(schemaString=mapped, configuration=mode)])
    if repairs:
        assert commit(txn).version == 2
        return
    with pytest.raises(CorruptTableError, match="2 columns have the ID 1.*fsck") as caught:
        commit(txn)
    assert caught.value.version == 1
    assert table.names()[1:] == ["00000000000000000001.json"]


@pytest.mark.parametrize("trace", ["checkpoint", "commit"])
def test_a_commit_at_a_deleted_version_is_reported(table: TableBuilder, trace: str) -> None:
    txn = append(table)
    for n in range(3):
        table.commit([log.add(f"x{n}")])
    table.store.now_ms = lambda: EPOCH_MS + 86_400_000
    if trace == "checkpoint":
        table.checkpoint()
        table.drop(*(f"{n:020d}.json" for n in (1, 2, 3)))
    else:
        table.drop(f"{1:020d}.json")
    table.store.now_ms = lambda: EPOCH_MS + 86_400_000
    with pytest.raises(CommitUnknownError, match="older"):
        commit(txn)


def test_slightly_older_files_are_tolerated(table: TableBuilder) -> None:
    store = table.store
    assert isinstance(store, RacedStore)
    txn = append(table)
    table.commit([log.add("x")], version=2, at_ms=EPOCH_MS + 60_000)
    store.now_ms = lambda: EPOCH_MS + 120_000
    assert commit(txn).version == 1


def test_a_landed_commit_survives_later_storage_errors(
    table: TableBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    trial = FaultStore(table.store)
    snapshot(table, trial)
    store = FaultStore(table.store, at=len(trial.trace) + 1, fault=Fault.FAILURE)
    assert commit(append(table, store=store)).version == 1
    assert "is committed" in caplog.text


@pytest.mark.conformance("TXN-01", "TXN-02")
def test_a_fault_at_any_step_leaves_the_table_before_or_after() -> None:
    def begin(store: Store, winners: int) -> Transaction:
        base = TableBuilder(store)
        base.commit([log.protocol(), log.metadata(), log.add("a")])
        txn = transaction(base, "WRITE", operation_id="run-1")
        txn.stage_adds([log.add("new")["add"]])
        for n in range(winners):
            base.commit([log.add(f"x{n}")])
        return txn

    def trial(winners: int, **fault: Any) -> tuple[MemoryStore, FaultStore, Any]:
        inner = MemoryStore()
        txn = begin(inner, winners)
        store = FaultStore(inner, **fault)
        txn._snapshot.log.store = store
        try:
            return inner, store, commit(txn)
        except (SimulatedCrash, StorageError, CommitUnknownError, CorruptTableError) as error:
            return inner, store, error

    cases = 0
    for winners in (0, 2):
        _, recorded, _ = trial(winners)
        for at, fault in faults(recorded.trace):
            cases += 1
            inner, _, outcome = trial(winners, at=at, fault=fault)
            live = Table(inner).snapshot().live_files()["path"].to_pylist()
            assert live.count("new") == ("new" in live)
            if isinstance(outcome, Landed):
                assert "new" in live
            base = TableBuilder(inner)
            again = transaction(base, "WRITE", operation_id="run-1", planned_version=0)
            again.stage_adds([log.add("new")["add"]])
            result = commit(again)
            assert isinstance(result, AlreadyDone if "new" in live else Landed)
            live = Table(inner).snapshot().live_files()["path"].to_pylist()
            assert sorted(live) == ["a", "new", *(f"x{n}" for n in range(winners))]
    assert cases > 20
    print(f"{cases} cases")


class HidingStore(RacedStore):
    """Listings omit files that exist, as those of some stores do for a while (delta#7393)."""

    hidden = ""

    def list_from(self, directory: str, start: str = "") -> Any:
        found = super().list_from(directory, start)
        return (status for status in found if self.hidden not in (status.path, ""))


@pytest.fixture
def hiding() -> TableBuilder:
    table = TableBuilder(HidingStore())
    table.commit([log.protocol(), log.metadata()])
    table.store.hidden = "_delta_log/00000000000000000001.json"
    return table


@pytest.mark.conformance("TXN-02")
def test_a_commit_that_a_listing_omits_is_not_called_deleted(hiding: TableBuilder) -> None:
    outcome = commit(append(hiding))
    assert (outcome.version, outcome.attempts) == (1, 1)


@pytest.mark.conformance("TXN-02")
def test_a_winner_that_a_listing_omits_is_read_at_its_path(hiding: TableBuilder) -> None:
    txn = append(hiding)
    hiding.commit([log.add("x")])
    outcome = commit(txn)
    assert (outcome.version, outcome.attempts) == (2, 2)


@pytest.mark.conformance("TXN-02")
@pytest.mark.parametrize("stays", [False, True])
def test_a_commit_that_is_gone_or_replaced_after_its_put_is_reported(
    hiding: TableBuilder, stays: bool
) -> None:
    store = hiding.store
    real = store.list_from

    def cleaned(directory: str, start: str = "") -> Any:
        hiding.drop("00000000000000000001.json")
        if stays:
            hiding.commit([log.commit_info(txnId="other"), log.add("y")], version=1)
        return real(directory, start)

    txn = append(hiding)
    store.list_from = cleaned
    with pytest.raises(CommitUnknownError, match="it was deleted"):
        commit(txn)
