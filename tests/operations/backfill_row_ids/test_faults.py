"""Whatever happens to a process or its store during a backfill, the table stays sound."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from delta_maintenance.clock import NewId
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import backfill_row_ids
from delta_maintenance.operations.backfill_row_ids import (
    BackfillRowIdsOptions,
    BackfillRowIdsResult,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.faults.every_fault import distinct_faults
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash
from tests.support.operations.row_ids import append, check, commits, delete, state, without_row_ids
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
FILES = 3


def ids(prefix: str) -> NewId:
    numbers = count()
    return lambda: f"{prefix}-{next(numbers)}"


def stats(rows: int) -> str:
    return json.dumps({"numRecords": rows})


@cache
def files() -> dict[str, bytes]:
    table = TableBuilder()
    adds = [log.add(f"f{n}", stats=stats(n), tags={"k": "v"}) for n in range(FILES)]
    table.commit([log.protocol(), log.metadata(), *adds[:2], log.add("gone", stats=stats(1))])
    table.commit([log.remove("gone"), *adds[2:]])
    return contents(table.store)


def contents(store: Store) -> dict[str, bytes]:
    return {status.path: store.read(status.path) for status in store.list_from("_delta_log")}


def store_of(left: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore(now_ms=lambda: EPOCH_MS)
    for path, data in left.items():
        store.put(path, data)
    return store


def backfill(store: Store, name: str, *, checkpoint: bool = True) -> BackfillRowIdsResult:
    table = Table(store)
    options = BackfillRowIdsOptions(files_per_commit=2, checkpoint=checkpoint, operation_id="task")
    plan = backfill_row_ids.plan(table.snapshot(), options, context=RunContext.at(NOW))
    return backfill_row_ids.apply(
        table, plan, context=RunContext.at(NOW, new_id=ids(name), sleep=lambda _: None)
    )


def same_process(_: Store) -> None:
    """No other process acts before the rerun."""


def other_actors(store: Store) -> None:
    """Others go on before the rerun, as long as they have the features for it."""
    append(store, "others", 3)
    delete(store, "f0")


@pytest.mark.conformance("RT-13", "RT-02", "RT-04", "RT-06")
@pytest.mark.parametrize(
    ("meanwhile", "checkpoint"),
    [(same_process, False), (other_actors, False), (same_process, True)],
)
def test_a_crash_after_any_step_is_harmless(
    meanwhile: Callable[[Store], None], checkpoint: bool, count_cases: Callable[[str, int], None]
) -> None:
    trial = FaultStore(store_of(files()))
    assert backfill(trial, "first", checkpoint=checkpoint).status == "enabled"
    before = without_row_ids(state(store_of(files())))
    seen: set[object] = set()
    # With a checkpoint, only the steps that write it are new.
    cases = [
        (at, fault)
        for at, fault in distinct_faults(trial.trace)
        if not checkpoint or "checkpoint" in trial.trace[at].path
    ]
    assert len(cases) > (10 if checkpoint else 60)
    for at, fault in cases:
        inner = store_of(files())
        with suppress(SimulatedCrash, DeltaMaintenanceError):
            store = FaultStore(inner, at=at, fault=fault)
            result = backfill(store, "first", checkpoint=checkpoint)
            assert result.status in ("enabled", "incomplete")
        left = contents(inner)
        outcome = frozenset(left.items())
        if outcome in seen:
            continue
        seen.add(outcome)
        assert without_row_ids(state(inner)) == before, f"{fault} at {at}"
        check(inner, enabled=False)
        for version, _ in commits(inner):
            opened = Table(inner).snapshot(version=version).live_files()
            assert opened.num_rows == len(state(inner, until=version))
        meanwhile(inner)
        assert backfill(inner, "again", checkpoint=checkpoint).status in (
            "enabled",
            "nothing-to-do",
        )
        check(inner)
        ours = {path: add for path, add in without_row_ids(state(inner)).items()}
        assert ours.items() >= {k: v for k, v in before.items() if k[0] != "f0"}.items()
        assert len(ours) == FILES
    count_cases("faults of a row ID backfill", len(cases))


def test_a_commit_whose_answer_is_lost_is_not_made_twice() -> None:
    trial = FaultStore(store_of(files()))
    backfill(trial, "first", checkpoint=False)
    expected = [info_of(actions) for _, actions in commits(trial)]
    for at, step in enumerate(trial.trace):
        if step.kind == "put_if_absent":
            inner = store_of(files())
            store = FaultStore(inner, at=at, fault=Fault.LOST_ANSWER)
            assert backfill(store, "first", checkpoint=False).status == "enabled"
            assert [info_of(actions) for _, actions in commits(inner)] == expected
            check(inner)


def info_of(actions: list[log.Action]) -> str | None:
    return next((a["commitInfo"]["operation"] for a in actions if "commitInfo" in a), None)


SCRIPT = """
import sys
import time
from delta_maintenance import clock, open_table
from delta_maintenance.operations import backfill_row_ids as operation
from delta_maintenance.storage.local.store import LocalStore

put, last = LocalStore.put_if_absent, int(sys.argv[2])

def put_if_absent(self, path, data):
    # Waits for its end: the process that kills this one may not get a turn for a long time.
    if path.endswith(f"{last + 1:020}.json"):
        time.sleep(600)
    return put(self, path, data)

LocalStore.put_if_absent = put_if_absent
table = open_table(sys.argv[1])
options = operation.BackfillRowIdsOptions(files_per_commit=7, operation_id="task")
while True:
    snapshot = table.snapshot()
    plan = operation.plan(snapshot, options)
    result = operation.apply(table, plan)
    print(result.status, flush=True)
    if result.status == "nothing-to-do":
        break
"""


@pytest.mark.conformance("RT-13")
@pytest.mark.process
def test_processes_that_are_killed_leave_their_work_to_the_next_two_at_a_time(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    adds = [log.add(f"f{n}", stats=stats(n % 5)) for n in range(300)]
    now_ms = int(time.time() * 1000)
    table.commit([log.protocol(), log.metadata(), *adds], at_ms=now_ms)
    before = without_row_ids(state(table.store))
    interrupted = 0
    for kill in range(5):
        wanted = latest(table) + 1 + 2 * kill
        running = [started(tmp_path, last=wanted + 2) for _ in range(2)]
        while latest(table) < wanted and any(process.poll() is None for process in running):
            time.sleep(0.001)
        for process in running:
            process.kill()
            process.communicate()
        check(table.store, enabled=False)
        live = state(table.store)
        assert without_row_ids(live) == before, f"kill {kill}"
        done = sum("baseRowId" in action["add"] for action in live)
        interrupted += 0 < done < len(live)
    assert interrupted, "no process was killed half-way"
    last = started(tmp_path)
    said, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors
    assert said.splitlines()[-1] == "nothing-to-do"
    check(LocalStore(str(tmp_path)))
    assert without_row_ids(state(table.store)) == before


def latest(table: TableBuilder) -> int:
    return Table(table.store).latest_version()


def started(table: Path, *, last: int = 1 << 40) -> subprocess.Popen[str]:
    """Starts a process that makes no commit after the version `last`."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(table), str(last)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
