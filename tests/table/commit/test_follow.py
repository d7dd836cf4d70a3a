"""An advanced snapshot equals the snapshot of a newly opened table."""

from __future__ import annotations

import random
from typing import Any

import pytest

from delta_maintenance.protocol.actions import CommitInfo, DomainMetadata
from delta_maintenance.table.commit.concurrent_commits import advance
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.read import Snapshot, Table
from delta_maintenance.table.read.log_view import VanishedFileError
from tests.support.faults.fault_store import FaultStore
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

IN_COMMIT = {"delta.enableInCommitTimestamps": "true"}
TIMED = log.protocol(1, 7, writer_features=["inCommitTimestamp", "domainMetadata"])


def view(snapshot: Snapshot) -> dict[str, Any]:
    state = snapshot.log.state
    return {
        "version": snapshot.version,
        "timestamp": snapshot.timestamp_ms,
        "protocol": state.protocol,
        "metadata": state.metadata,
        "txns": dict(state.txns),
        "domains": dict(state.domains),
        "info": state.commit_info,
        "files": sorted(snapshot.live_files()["path"].to_pylist()),
        "tombstones": sorted(snapshot.tombstones()["path"].to_pylist()),
        "commits": [entry.path for entry in snapshot.log.segment.commits],
    }


@pytest.mark.parametrize("seed", range(20))
def test_the_advanced_snapshot_equals_a_new_one(seed: int) -> None:
    chance = random.Random(seed)
    table = TableBuilder()
    table.commit([TIMED, log.metadata(configuration={}), log.add("f0")])
    if chance.random() < 0.5:
        table.checkpoint()
    followed = table.open().snapshot()
    for _ in range(4):
        for _ in range(chance.randrange(4)):
            table.commit(some_actions(chance, table.version + 1))
        moved = advance(followed)
        assert [c.version for c in moved.commits] == list(
            range(followed.version + 1, table.version + 1)
        )
        followed = moved.snapshot
        assert view(followed) == view(table.open().snapshot())


def some_actions(chance: random.Random, version: int) -> list[log.Action]:
    number = chance.randrange(3)
    some = [
        log.commit_info(inCommitTimestamp=EPOCH_MS * 2 + version),
        log.add(f"f{version}"),
        log.remove(f"f{chance.randrange(version)}"),
        log.txn(f"app{number}", version),
        log.domain(f"d{number}", str(version), removed=chance.random() < 0.3),
        log.metadata(configuration=IN_COMMIT | {"version": str(version)}),
        log.protocol(1, 7, writer_features=["inCommitTimestamp", "domainMetadata", "invariants"]),
    ]
    return [some[0], *(action for action in some[1:] if chance.random() < 0.4)]


def test_own_commits_are_applied_without_a_read() -> None:
    table = TableBuilder()
    table.commit([log.protocol(), log.metadata()])
    store = FaultStore(table.store)
    snapshot = Table(store).snapshot()
    table.commit([log.add("theirs")])
    table.commit([log.domain("d", "x"), log.add("mine")])
    table.commit([log.add("later")])
    own = Landed(
        version=2,
        attempts=1,
        in_commit_timestamp=None,
        num_adds=1,
        num_removes=0,
        domains=(DomainMetadata(domain="d", configuration="x"),),
    )
    store.trace.clear()
    moved = advance(snapshot, landed=own)
    assert [step.kind for step in store.trace] == ["list_from", "read", "read"]
    assert [commit.version for commit in moved.commits] == [1, 3]
    expected = view(table.open().snapshot())
    assert view(moved.snapshot) == expected
    store.trace.clear()
    assert advance(moved.snapshot).snapshot is moved.snapshot
    assert [step.kind for step in store.trace] == ["list_from"]


def test_the_timestamp_of_an_own_commit_is_known() -> None:
    table = TableBuilder()
    table.commit(
        [TIMED, log.metadata(configuration=IN_COMMIT), log.commit_info(inCommitTimestamp=5)]
    )
    snapshot = table.open().snapshot()
    table.commit([log.commit_info(inCommitTimestamp=99)])
    own = Landed(
        version=1,
        attempts=1,
        in_commit_timestamp=99,
        num_adds=0,
        num_removes=0,
        commit_info=CommitInfo(values={"inCommitTimestamp": 99}),
    )
    assert advance(snapshot, landed=own).snapshot.timestamp_ms == 99


def test_deleted_commits_are_an_error() -> None:
    table = TableBuilder()
    table.commit([log.protocol(), log.metadata()])
    snapshot = table.open().snapshot()
    for name in "abc":
        table.commit([log.add(name)])
    table.checkpoint()
    table.store.delete(f"_delta_log/{2:020}.json")
    with pytest.raises(VanishedFileError, match="commit 2 was deleted after version 0"):
        advance(snapshot)
    table.store.delete(f"_delta_log/{1:020}.json")
    table.store.delete(f"_delta_log/{3:020}.json")
    with pytest.raises(VanishedFileError):
        advance(snapshot)
