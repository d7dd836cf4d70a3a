"""Crashes and other writers leave sound tables, and statistics that fit the rows."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from tests.support.faults.every_fault import distinct_faults
from tests.support.faults.fault_store import FaultStore, SimulatedCrash
from tests.support.operations.row_ids import RacedStore, delete, delete_rows
from tests.support.operations.statistics_repair import planned, recompute, statistics
from tests.support.rewrites.data_files import DataTable, field, inline_vector
from tests.support.rewrites.table_rows import latest, live_adds, live_rows
from tests.support.tables.table_builder import EPOCH_MS

LISTS = {"type": "array", "elementType": "long", "containsNull": True}


def table_in(store: Store | None = None, files: int = 5) -> DataTable:
    """Of every second file, a column must be decoded."""
    table = DataTable(
        field("a", "long"), field("l", LISTS), store=store, features=["deletionVectors"]
    )
    for number in range(files):
        rows = pa.table({"a": [number, number + 10], "l": [[1], None]})
        table.append(rows if number % 2 else rows.select(["a"]))
    return table


@cache
def files() -> dict[str, bytes]:
    store = table_in(MemoryStore(now_ms=lambda: EPOCH_MS)).store
    names = [status.path for folder in ("", "_delta_log") for status in store.list_from(folder)]
    return {name: store.read(name) for name in names if store.stat(name) is not None}


def store_of(left: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore(now_ms=lambda: EPOCH_MS)
    for path, data in left.items():
        store.put(path, data)
    return store


def check(stats: dict[str, Any], number: int) -> None:
    assert stats["minValues"] == {"a": number} and stats["maxValues"] == {"a": number + 10}
    assert stats["nullCount"] == {"a": 0, "l": 1 if number % 2 else 2}


def test_a_crash_after_any_step_is_harmless() -> None:
    trial = FaultStore(store_of(files()))
    assert recompute(trial, files_per_commit=2).num_commits == 5
    rows = live_rows(store_of(files()))
    cases = list(distinct_faults(trial.trace))
    assert len(cases) > 40
    seen: set[object] = set()
    for at, fault in cases:
        inner = store_of(files())
        with suppress(SimulatedCrash, DeltaMaintenanceError, OSError):
            recompute(FaultStore(inner, at=at, fault=fault), files_per_commit=2)
        assert live_rows(inner) == rows, f"{fault} at {at}"
        outcome = latest(inner), tuple(sorted(add["stats"] for add in live_adds(inner).values()))
        if outcome in seen:
            continue
        seen.add(outcome)
        assert recompute(inner).num_skipped == 0
        assert planned(inner).is_noop
        for number, stats in enumerate(statistics(inner).values()):
            check(stats, number)
    assert len(seen) > 4


@pytest.mark.conformance("TXN-06", "DV-13")
def test_files_that_others_change_between_batches_are_left_to_them() -> None:
    store = RacedStore()
    table = table_in(store, files=8)
    paths = list(table.live)
    vector = inline_vector([0])

    def append() -> None:
        [path] = table.append(pa.table({"a": [99]}), commit=False)
        table.builder.commit([{"add": table.live[path]}], version=latest(store) + 1)

    # The newest files come first.
    store.races = [
        lambda: delete(store, paths[6]),
        append,
        None,
        lambda: delete_rows(store, paths[0], vector),
        lambda: delete(store, paths[1]),
    ]
    result = recompute(store, files_per_commit=2)
    assert (result.status, result.files_overtaken) == ("recomputed", 3)
    assert not store.races
    live = live_adds(store)
    assert paths[6] not in live and paths[1] not in live
    assert live[paths[0]]["deletionVector"] == vector
    assert json.loads(live[paths[0]]["stats"]) == {"numRecords": 2}
    for number in (2, 3, 4, 5, 7):
        check(statistics(store)[paths[number]], number)
    assert recompute(store).files_recomputed == 2
    assert planned(store).is_noop


def test_a_table_that_is_replaced_in_between_keeps_its_new_columns() -> None:
    store = RacedStore()
    table = table_in(store)
    other = DataTable(field("b", "string"))
    replacement = other.store.read("_delta_log/00000000000000000000.json").splitlines()[1]
    replaced = [json.loads(replacement)]
    store.races = [None, lambda: table.builder.commit(replaced, version=latest(store) + 1)]
    result = recompute(store, files_per_commit=2)
    assert (result.status, result.num_commits) == ("partly", 1)
    assert "columns" in str(result.problem)
