"""Whatever happens to a process or its store during a rewrite, no row changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizeResult
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash, faults
from tests.support.rewrites.data_files import ROW_ID, ROW_VERSION
from tests.support.rewrites.rewritten_tables import COPIED_BYTES, NOW, Rewritten, ids
from tests.support.rewrites.table_rows import Row, live_rows


@cache
def contents(mixed: bool) -> dict[str, bytes]:
    """A table with deleted rows, as files. With `mixed`, some row groups are large."""
    made = Rewritten(partitions="xy", files=2, mixed=mixed)
    made.table.delete(made.paths["y"][1], [3] if mixed else [1, 3])
    found = {}
    for batch in made.store.list_tree():
        for path in batch["path"].to_pylist():
            found[path] = made.store.read(path)
    return found


def store_of(files: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore(now_ms=lambda: epoch_millis(NOW))
    for path, data in files.items():
        store.put(path, data)
    return store


def rows(store: Store) -> list[Row]:
    return live_rows(store, row_id=ROW_ID, row_version=ROW_VERSION)


def rewrite(store: Store, seed: int, **options: int) -> OptimizeResult:
    table = Table(store)
    settings = OptimizeOptions(workers=1, **options)
    planned = optimize.plan(table.snapshot(), settings, context=RunContext.at(NOW))
    return optimize.apply(
        table, planned, context=RunContext.at(NOW, new_id=ids(seed), sleep=lambda _: None)
    )


@pytest.mark.conformance("RW-19", "RW-36", "RW-37", "RW-44", "RW-45")
@pytest.mark.parametrize("mixed", [False, True])
def test_a_crash_after_any_step_is_harmless(
    monkeypatch: pytest.MonkeyPatch, count_cases: Callable[[str, int], None], mixed: bool
) -> None:
    if mixed:
        monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", COPIED_BYTES)
    trial = FaultStore(store_of(contents(mixed)))
    whole = rewrite(trial, 1)
    assert whole.status == "rewritten" and {each.copied for each in whole.bins} == {mixed}
    before = rows(store_of(contents(mixed)))
    # A process that dies before it reads leaves what it left before the step before.
    cases = [
        (at, fault)
        for at, fault in faults(trial.trace)
        if fault is not Fault.CRASH_BEFORE or Fault.LOST_ANSWER.hits(trial.trace[at])
    ]
    assert len(cases) > 40
    seen: set[frozenset[str]] = set()
    finished = 0
    for at, fault in cases:
        inner = store_of(contents(mixed))
        with suppress(SimulatedCrash, DeltaMaintenanceError):
            rewrite(FaultStore(inner, at=at, fault=fault), 1)
        left = frozenset(path for batch in inner.list_tree() for path in batch["path"].to_pylist())
        if left in seen:
            continue
        seen.add(left)
        assert rows(inner) == before, f"{fault} at {at}"
        again = rewrite(inner, 2)
        finished += again.status == "rewritten"
        assert again.status in ("rewritten", "nothing-to-do")
        assert rows(inner) == before, f"after {fault} at {at}"
        assert rewrite(inner, 3).status == "nothing-to-do"
    assert finished
    count_cases("steps of a rewrite", len(seen))


@pytest.mark.parametrize("mixed", [False, True])
def test_a_file_that_may_not_be_there_is_written_again(
    monkeypatch: pytest.MonkeyPatch, mixed: bool
) -> None:
    """Nothing refers to it: unlike after a commit, there is nothing to check."""
    if mixed:
        monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", COPIED_BYTES)
    trial = FaultStore(store_of(contents(mixed)))
    rewrite(trial, 1)
    at = next(at for at, step in enumerate(trial.trace) if step.kind == "create")
    store = store_of(contents(mixed))
    result = rewrite(FaultStore(store, at=at, fault=Fault.LOST_ANSWER), 1)
    [problem] = [each.problem for each in result.bins if each.fate == "failed"]
    assert problem is not None and problem.endswith("; run again")
    assert "check whether" not in problem
    assert rewrite(store, 2).status == "rewritten"
