"""Looking for the commit of an earlier run: what is found, and by how many requests."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from delta_maintenance.errors import RefusedError
from delta_maintenance.table.commit.idempotency import EarlierCommit, commit_after, commit_since
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.testing import actions as log
from delta_maintenance.testing.fault_store import FaultStore
from delta_maintenance.testing.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder


def at(version: int) -> datetime:
    """When the commit was made."""
    return datetime.fromtimestamp((EPOCH_MS + version * MINUTE_MS) / 1000, UTC)


def built(own: int = 0, *, versions: int = 61, checkpoint: int | None = None) -> TableBuilder:
    """A commit a minute, one of them with the id `task`."""
    table = TableBuilder()
    table.commit([log.protocol(), log.metadata()])
    for version in range(1, versions):
        fields = {"operationId": "task"} if version == own else {}
        table.commit([log.commit_info("WRITE", **fields), log.add(f"f{version}")])
        if version == checkpoint:
            (name,) = table.checkpoint()
            table.write(name, table.read(name), at_ms=EPOCH_MS + version * MINUTE_MS)
    return table


def opened(table: TableBuilder) -> tuple[Snapshot, FaultStore]:
    """The latest snapshot, and the store that notes what is asked after that."""
    snapshot, store = table.open().snapshot(), FaultStore(table.store)
    snapshot.store = store
    return snapshot, store


def requests(store: FaultStore) -> dict[str, int]:
    kinds = [step.kind for step in store.trace]
    return {kind: kinds.count(kind) for kind in kinds}


def found(version: int) -> EarlierCommit:
    return EarlierCommit(operation_id="task", version=version)


@pytest.mark.parametrize("checkpoint", [None, 10, 50, 60])
@pytest.mark.parametrize("own", [1, 30, 49, 50, 51, 59, 60])
def test_a_commit_is_found_wherever_it_lies(own: int, checkpoint: int | None) -> None:
    snapshot, _ = opened(built(own, checkpoint=checkpoint))
    assert commit_since(snapshot, ["task"], None) == found(own)
    assert commit_since(snapshot, ["other", "task"], at(own)) == found(own)
    assert commit_since(snapshot, ["other"], None) is None
    assert commit_after(snapshot, ["task"], 0) == found(own)
    assert commit_after(snapshot, ["task"], own - 1) == found(own)
    assert commit_after(snapshot, ["task"], own) == (found(60) if own == 60 else None)


def test_the_newest_of_several_is_meant() -> None:
    table = built(20)
    table.commit([log.commit_info("WRITE", operationId="task/enable")])
    table.commit([log.commit_info("WRITE")])
    snapshot, _ = opened(table)
    enabled = EarlierCommit(operation_id="task/enable", version=61)
    assert commit_since(snapshot, ["task", "task/enable"], None) == enabled


def test_later_versions_than_the_snapshots_are_not_looked_at() -> None:
    table = built(40, checkpoint=20)
    store = FaultStore(table.store)
    snapshot = Table(store).snapshot(version=39)
    assert commit_since(snapshot, ["task"], None) is None
    assert commit_after(snapshot, ["task"], 0) is None


def test_a_clock_that_is_ten_minutes_ahead_hides_nothing() -> None:
    snapshot, _ = opened(built(40))
    assert commit_since(snapshot, ["task"], at(40) + timedelta(minutes=10)) == found(40)
    assert commit_since(snapshot, ["task"], at(40) + timedelta(minutes=11)) is None


@pytest.mark.parametrize(
    ("checkpoint", "began", "expected"),
    [
        (40, 100, {}),
        (40, 70, {}),
        (40, 68, {"read": 2}),
        (40, 55, {"read": 15}),
        (60, 61, {"list_from": 1, "read": 9}),
        (None, 61, {"read": 9}),
    ],
)
def test_a_task_that_has_just_begun_pays_for_what_came_since(
    checkpoint: int | None, began: int, expected: dict[str, int]
) -> None:
    snapshot, store = opened(built(checkpoint=checkpoint))
    assert commit_since(snapshot, ["task"], at(began)) is None
    assert requests(store) == expected


def test_a_plan_that_is_carried_out_at_once_pays_nothing() -> None:
    snapshot, store = opened(built(checkpoint=40))
    assert commit_after(snapshot, ["task"], 60) is None
    assert commit_after(snapshot, ["task"], 59) is None
    assert store.trace == []
    assert commit_after(snapshot, ["task"], 57) is None
    assert requests(store) == {"read": 2}
    assert commit_after(snapshot, ["task"], 37) is None
    assert requests(store) == {"read": 2 + 22, "list_from": 1}


def test_of_a_large_commit_only_the_head_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = built(versions=2)
    table.commit([log.commit_info("WRITE", operationId="task"), log.add("big" * 100_000)])
    table.commit([log.commit_info("WRITE")])
    snapshot, store = opened(table)
    monkeypatch.setattr(type(store), "read", lambda *_: pytest.fail("a commit was read whole"))
    assert commit_since(snapshot, ["task"], None) == found(2)


def test_a_first_line_of_any_length_is_read_to_its_end() -> None:
    table = built(versions=2)
    table.commit([log.commit_info("WRITE", note="x" * 100_000, operationId="task")])
    table.commit([log.commit_info("WRITE")])
    assert commit_since(opened(table)[0], ["task"], None) == found(2)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"commitInfo"',
        b'{"commitInfo":[]}',
        b'{"commitInfo":{"operationId":["task"]}}',
        b"\xff",
    ],
)
def test_what_others_wrote_is_passed_over(line: bytes) -> None:
    table = built(own=10, checkpoint=40)
    table.write("00000000000000000020.json", line)
    snapshot, _ = opened(table)
    assert commit_since(snapshot, ["task"], None) == found(10)


def test_a_commit_of_ours_says_so_in_its_first_line() -> None:
    table = built(versions=2)
    for number in range(2):
        txn = Transaction(table.open().snapshot(), "WRITE", operation_id=f"task-{number}")
        txn.stage_adds([log.add(f"n{number}")["add"]])
        txn.commit()
    first = json.loads(table.read("00000000000000000002.json").splitlines()[0])
    assert first["commitInfo"]["operationId"] == "task-0"
    snapshot, _ = opened(table)
    assert commit_since(snapshot, ["task-0"], None) == EarlierCommit(
        operation_id="task-0", version=2
    )


def test_what_was_cleaned_away_is_no_obstacle_to_a_new_plan() -> None:
    table = built(own=10, checkpoint=40)
    table.drop(*(f"{version:020d}.json" for version in range(20)))
    snapshot, _ = opened(table)
    assert commit_since(snapshot, ["task"], None) is None


def test_what_is_cleaned_away_meanwhile_is_no_obstacle_to_a_new_plan() -> None:
    table = built(own=50, checkpoint=40)
    snapshot, _ = opened(table)
    table.drop(f"{55:020d}.json")
    assert commit_since(snapshot, ["task"], None) == found(50)


@pytest.mark.parametrize("listed", [False, True])
def test_an_old_plan_is_refused_where_commits_since_are_gone(listed: bool) -> None:
    table = built(own=10, checkpoint=40)
    snapshot, _ = opened(table)
    gone = f"{50 if listed else 30:020d}.json"
    table.drop(gone)
    planned_for = 45 if listed else 20
    with pytest.raises(RefusedError, match="plan again"):
        commit_after(snapshot, ["task"], planned_for)
