"""Finding the commit of an earlier run, and the requests that the search costs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from delta_maintenance.errors import RefusedError
from delta_maintenance.table.commit.idempotency import EarlierCommit, commit_after, commit_since
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.read import Snapshot, Table
from tests.support.faults.fault_store import FaultStore
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder


def at(version: int) -> datetime:
    """The time of a commit."""
    return datetime.fromtimestamp((EPOCH_MS + version * MINUTE_MS) / 1000, UTC)


def built(own: int = 0, *, versions: int = 61, checkpoint: int | None = None) -> TableBuilder:
    """A table with one commit per minute; the commit `own` has the operation ID `task`."""
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
    """The latest snapshot, and a store that records later requests."""
    snapshot, store = table.open().snapshot(), FaultStore(table.store)
    snapshot.log.store = store
    return snapshot, store


def requests(store: FaultStore) -> dict[str, int]:
    kinds = [step.kind for step in store.trace]
    return {kind: kinds.count(kind) for kind in kinds}


def found(version: int) -> EarlierCommit:
    return EarlierCommit(operation_id="task", version=version)


@pytest.mark.parametrize("checkpoint", [None, 10, 50, 60])
@pytest.mark.parametrize("own", [1, 30, 49, 50, 51, 59, 60])
def test_a_commit_is_found_at_any_version(own: int, checkpoint: int | None) -> None:
    snapshot, _ = opened(built(own, checkpoint=checkpoint))
    assert commit_since(snapshot, ["task"], None) == found(own)
    assert commit_since(snapshot, ["other", "task"], at(own)) == found(own)
    assert commit_since(snapshot, ["other"], None) is None
    assert commit_after(snapshot, ["task"], 0) == found(own)
    assert commit_after(snapshot, ["task"], own - 1) == found(own)
    assert commit_after(snapshot, ["task"], own) == (found(60) if own == 60 else None)


def test_the_newest_of_several_commits_is_found() -> None:
    table = built(20)
    table.commit([log.commit_info("WRITE", operationId="task/enable")])
    table.commit([log.commit_info("WRITE")])
    snapshot, _ = opened(table)
    enabled = EarlierCommit(operation_id="task/enable", version=61)
    assert commit_since(snapshot, ["task", "task/enable"], None) == enabled


def test_versions_after_the_snapshot_are_not_searched() -> None:
    table = built(40, checkpoint=20)
    store = FaultStore(table.store)
    snapshot = Table(store).snapshot(version=39)
    assert commit_since(snapshot, ["task"], None) is None
    assert commit_after(snapshot, ["task"], 0) is None


def test_clock_skew_of_ten_minutes_is_tolerated() -> None:
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
def test_requests_of_a_task_that_just_started(
    checkpoint: int | None, began: int, expected: dict[str, int]
) -> None:
    snapshot, store = opened(built(checkpoint=checkpoint))
    assert commit_since(snapshot, ["task"], at(began)) is None
    assert requests(store) == expected


def test_applying_a_new_plan_costs_no_request() -> None:
    snapshot, store = opened(built(checkpoint=40))
    assert commit_after(snapshot, ["task"], 60) is None
    assert commit_after(snapshot, ["task"], 59) is None
    assert store.trace == []
    assert commit_after(snapshot, ["task"], 57) is None
    assert requests(store) == {"read": 2}
    assert commit_after(snapshot, ["task"], 37) is None
    assert requests(store) == {"read": 2 + 22, "list_from": 1}


def test_only_the_start_of_a_large_commit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = built(versions=2)
    table.commit([log.commit_info("WRITE", operationId="task"), log.add("big" * 100_000)])
    table.commit([log.commit_info("WRITE")])
    snapshot, store = opened(table)
    monkeypatch.setattr(type(store), "read", lambda *_: pytest.fail("a commit was read whole"))
    assert commit_since(snapshot, ["task"], None) == found(2)


def test_a_long_first_line_is_read_completely() -> None:
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
def test_commits_of_other_writers_are_skipped(line: bytes) -> None:
    table = built(own=10, checkpoint=40)
    table.write("00000000000000000020.json", line)
    snapshot, _ = opened(table)
    assert commit_since(snapshot, ["task"], None) == found(10)


def test_our_commits_have_commit_info_on_the_first_line() -> None:
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


def test_deleted_commits_do_not_prevent_a_new_plan() -> None:
    table = built(own=10, checkpoint=40)
    table.drop(*(f"{version:020d}.json" for version in range(20)))
    snapshot, _ = opened(table)
    assert commit_since(snapshot, ["task"], None) is None


def test_concurrently_deleted_commits_do_not_prevent_a_new_plan() -> None:
    table = built(own=50, checkpoint=40)
    snapshot, _ = opened(table)
    table.drop(f"{55:020d}.json")
    assert commit_since(snapshot, ["task"], None) == found(50)


@pytest.mark.parametrize("listed", [False, True])
def test_an_old_plan_is_refused_if_later_commits_were_deleted(listed: bool) -> None:
    table = built(own=10, checkpoint=40)
    snapshot, _ = opened(table)
    gone = f"{50 if listed else 30:020d}.json"
    table.drop(gone)
    planned_for = 45 if listed else 20
    with pytest.raises(RefusedError, match="plan again"):
        commit_after(snapshot, ["task"], planned_for)
