"""With any files, batches and concurrent writers, row IDs are unique, stable and below the mark."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.operations import backfill_row_ids
from delta_maintenance.operations.backfill_row_ids import (
    BackfillRowIdsOptions,
    BackfillRowIdsResult,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.table.read import Table
from tests.support.operations.row_ids import (
    Action,
    RacedStore,
    append,
    check,
    compact,
    delete,
    delete_rows,
    state,
    without_row_ids,
)
from tests.support.suite.play import examples
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROTOCOL = log.features("deletionVectors", writer_only=["domainMetadata"])
TRACKED = log.features("deletionVectors", writer_only=["domainMetadata", "rowTracking"])

Race = tuple[str, int]
races = st.lists(
    st.one_of(
        st.none(),
        st.tuples(
            st.sampled_from(
                ["append", "delete", "delete_rows", "compact", "backfill", "configure"]
            ),
            st.integers(0, 30),
        ),
    ),
    max_size=12,
)


class World:
    """A table, and the expected state of its files without the backfill."""

    def __init__(self, rows: list[int], tracked: int) -> None:
        self.store = RacedStore()
        self.builder = TableBuilder(self.store)
        protocol = TRACKED if tracked else PROTOCOL
        adds, first = [], 0
        for number, count in enumerate(rows):
            fields: Action = {"stats": json.dumps({"numRecords": count})}
            if number < tracked:
                fields |= {"baseRowId": first, "defaultRowCommitVersion": 0}
                first += count
            adds.append(log.add(f"f{number}", **fields))
        mark = json.dumps({"rowIdHighWaterMark": first - 1})
        domain = [log.domain("delta.rowTracking", mark)] if first else []
        self.builder.commit([protocol, log.metadata(), *adds, *domain])
        self.model = without_row_ids(state(self.store))
        self.done = 0

    def backfill(self, files_per_commit: int) -> BackfillRowIdsResult:
        table = Table(self.store)
        options = BackfillRowIdsOptions(files_per_commit=files_per_commit, checkpoint=False)
        plan = backfill_row_ids.plan(table.snapshot(), options, context=RunContext.at(NOW))
        return backfill_row_ids.apply(table, plan, context=RunContext(sleep=lambda _: None))

    def race(self, race: Race | None) -> Callable[[], None] | None:
        return None if race is None else lambda: self._act(*race)

    def _act(self, kind: str, at: int) -> None:
        live = sorted(action["add"]["path"] for action in state(self.store))
        self.done += 1
        before = without_row_ids(state(self.store))
        path = live[at % len(live)] if live else None
        match kind:
            case "append":
                append(self.store, f"n{self.done}", at)
            case "backfill":
                self.backfill(1 + at % 3)
            case "configure":
                self._configure()
            case "delete" if path:
                delete(self.store, path)
            case "delete_rows" if path:
                delete_rows(self.store, path, log.deletion_vector(f"{self.done:020}"))
            case "compact" if path:
                compact(self.store, path, into=f"n{self.done}", rows=at)
        if kind != "backfill":
            after = without_row_ids(state(self.store))
            for gone in before.keys() - after.keys():
                self.model.pop(gone, None)
            self.model |= {key: after[key] for key in after.keys() - before.keys()}

    def _configure(self) -> None:
        metadata = Table(self.store).snapshot().metadata.to_json()
        metadata["configuration"] = {**metadata["configuration"], "theirs": str(self.done)}
        version = Table(self.store).latest_version() + 1
        self.builder.commit([{"metaData": metadata}], version=version)


@pytest.mark.conformance("RT-02", "RT-04", "RT-06", "RT-07", "RT-13", "RT-14")
@settings(max_examples=examples(60))
@given(
    rows=st.lists(st.integers(0, 9), max_size=12),
    tracked=st.integers(0, 12),
    files_per_commit=st.integers(1, 7),
    others=races,
)
def test_row_ids_are_unique_stable_and_below_the_mark(
    rows: list[int], tracked: int, files_per_commit: int, others: list[Race | None]
) -> None:
    world = World(rows, min(tracked, len(rows)))
    before = {a["add"]["path"]: a["add"].get("baseRowId") for a in state(world.store)}
    world.store.races = [world.race(race) for race in others]
    result = world.backfill(files_per_commit)
    world.store.races = []
    if result.status == "incomplete":
        assert world.done, result.problem
        assert world.backfill(files_per_commit).status in ("enabled", "nothing-to-do")
    check(world.store)
    assert without_row_ids(state(world.store)) == world.model
    for action in state(world.store):
        path, given_id = action["add"]["path"], action["add"]["baseRowId"]
        assert before.get(path) in (None, given_id)
    assert world.backfill(files_per_commit).status == "nothing-to-do"
