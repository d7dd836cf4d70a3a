"""Column mapping is dropped while others write, and wherever the process stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import CommitConflictError
from delta_maintenance.operations.drop_feature.preparation import Committer
from delta_maintenance.operations.drop_feature.unmapping import remove_mapping
from delta_maintenance.operations.rewriting import commits
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.commit import Writer
from delta_maintenance.table.data import carried_deletions
from delta_maintenance.table.read import Table
from tests.support.faults import every_fault
from tests.support.faults.every_fault import files_of, play_faults
from tests.support.faults.fault_store import Fault, FaultStore, faults
from tests.support.rewrites.data_files import DataTable, schema_string
from tests.support.rewrites.mapped_tables import (
    MODE,
    expected,
    identities,
    mapped,
    mapped_rows,
    mapped_table,
    rows,
    schema,
    unmapped_rows,
)
from tests.support.rewrites.table_rows import actions_of, latest, live_adds
from tests.support.tables import actions as log
from tests.support.tables.droppable_tables import Clock, drop

FEATURE = "columnMapping"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def table_of(clock: Clock, **options: Any) -> tuple[DataTable, list[str]]:
    made = mapped_table(**options)
    clock.govern(made.store)
    paths = made.append(rows(0), rows(10), partitionValues={"c6": "x"})
    return made, [*paths, *made.append(rows(20), partitionValues={"c6": "y"})]


def removals(store: Store) -> int:
    names = [
        action.get("commitInfo", {}).get("operation")
        for version in range(latest(store) + 1)
        for action in actions_of(store, version)
    ]
    return names.count("REMOVE COLUMN MAPPING")


@pytest.mark.conformance("RW-38", "RW-29", "RW-30", "TXN-04")
@pytest.mark.parametrize("vectors", [True, False])
def test_what_others_add_and_delete_meanwhile_is_converted(
    vectors: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_again = []

    def without_rows(*arguments: Any, **options: Any) -> Any:
        written_again.append(carried_deletions.without_rows(*arguments, **options))
        return written_again[-1]

    monkeypatch.setattr(commits, "without_rows", without_rows)
    made, (first, second, third) = table_of(clock, vectors=vectors)
    lost: dict[int, Any] = {}

    def note() -> None:
        lost.update(mapped_rows(made.store))
        ids.update(identities(made.store))

    ids: dict[int, tuple[int, int]] = {}

    def append() -> None:
        made.append(rows(30), partitionValues={"c6": "z"})
        made.delete(first, [0])

    def change() -> None:
        made.delete(second, [1, 2])
        made.remove(third)
        [late] = made.append(rows(40), partitionValues={"c6": None})
        made.delete(late, [3])
        note()

    made.store.races = [append, change]
    assert drop(made.store, clock, FEATURE).status == "dropped"
    assert not made.store.races
    assert unmapped_rows(made.store) == lost
    # From the new files, if the rows cannot be marked in them.
    assert bool(written_again) != vectors
    assert set(lost) == {1, 2, 3, 10, 13, *range(30, 34), 40, 41, 42}
    assert identities(made.store) == ids
    assert removals(made.store) == 1


@pytest.mark.conformance("RW-38", "RW-29")
def test_a_bin_whose_source_others_rewrite_is_converted_again(clock: Clock) -> None:
    made, (first, second, _) = table_of(clock, tracked=False)
    before = mapped_rows(made.store)

    def compact() -> None:
        made.remove(first, data_change=False)
        made.remove(second, data_change=False)
        made.append(
            pa.concat_tables([rows(0), rows(10)]), dataChange=False, partitionValues={"c6": "x"}
        )

    made.store.races = [compact]
    assert drop(made.store, clock, FEATURE).status == "dropped"
    assert unmapped_rows(made.store) == before


@pytest.mark.conformance("RW-38", "RW-28")
def test_a_column_that_others_add_meanwhile_is_converted(clock: Clock) -> None:
    made, _ = table_of(clock)
    columns = (*schema(), mapped("late", "long", 11, "c11"))

    def evolve() -> None:
        configuration = Table(made.store).snapshot().metadata.configuration
        made.builder.commit(
            [
                log.metadata(
                    schema=schema_string(*columns),
                    configuration=configuration,
                    partitioned_by=["part"],
                )
            ]
        )
        wide = rows(30).append_column("c11", pa.array([5, 6, 7, 8], pa.int64()))
        made.append(wide, partitionValues={"c6": "x"})

    made.store.races = [evolve]
    assert drop(made.store, clock, FEATURE).status == "dropped"
    found = unmapped_rows(made.store)
    assert [found[n]["late"] for n in range(30, 34)] == [5, 6, 7, 8]
    without = {key: value for key, value in found[30].items() if key != "late"}
    assert without == expected(30, "x")[30]
    assert len(found) == 16


@pytest.mark.conformance("RW-38", "RW-28", "TXN-04")
def test_a_column_that_others_rename_meanwhile_keeps_the_mapping(clock: Clock) -> None:
    made, _ = table_of(clock)
    columns = (mapped("other", "long", 1, "c1"), *schema()[1:])

    def rename() -> None:
        configuration = Table(made.store).snapshot().metadata.configuration
        action = log.metadata(
            schema=schema_string(*columns), configuration=configuration, partitioned_by=["part"]
        )
        made.builder.commit([action])

    before = live_adds(made.store)
    made.store.races = [rename]
    with pytest.raises(CommitConflictError, match="the columns"):
        drop(made.store, clock, FEATURE)
    assert live_adds(made.store) == before
    assert Table(made.store).snapshot().metadata.configuration[MODE] == "name"


@pytest.mark.conformance("RW-38", "RW-28")
def test_of_two_removals_at_the_same_time_one_wins_and_the_other_ends_well(clock: Clock) -> None:
    made, _ = table_of(clock)
    before = mapped_rows(made.store)
    made.store.races = [lambda: drop(made.store, clock, FEATURE)]
    assert drop(made.store, clock, FEATURE).status == "nothing-to-do"
    assert unmapped_rows(made.store) == before
    assert removals(made.store) == 1


WHILE_WRITING = (Fault.CRASH_AFTER, Fault.LOST_ANSWER, Fault.CRASH_WITHIN)


def remove(store: Store, clock: Clock) -> int | None:
    """Only the commit that removes the mapping; `test_faults` plays the steps after it."""
    committer = Committer(table=Table(store), feature=FEATURE, writer=Writer(now=clock))
    return remove_mapping(committer, progress=None)


@pytest.mark.conformance("RW-38", "RW-19", "RW-36", "TXN-02")
def test_a_run_after_a_fault_at_any_step_ends_it(
    clock: Clock, count_cases: Callable[[str, int], None]
) -> None:
    made, paths = table_of(clock)
    made.delete(paths[1], [2])
    before, ids = mapped_rows(made.store), identities(made.store)
    files = files_of(made.store)

    def store() -> MemoryStore:
        found = every_fault.store_of(files, now_ms=lambda: 0)
        clock.govern(found)
        return found

    trial = FaultStore(store())
    assert remove(trial, clock) is not None
    writes = ("put_if_absent", "put", "create", "delete")
    cases = [
        (at, fault)
        for at, fault in faults(trial.trace)
        if (fault in WHILE_WRITING if trial.trace[at].kind in writes else fault is Fault.FAILURE)
    ]
    assert len(cases) > 20
    # Every outcome is looked at: which ones are new depends on the order of random file names.
    for outcome in play_faults(lambda store: remove(store, clock), store, cases):
        found = outcome.store
        mapping = MODE in Table(found).snapshot().metadata.configuration
        assert (mapped_rows if mapping else unmapped_rows)(found) == before, outcome.where
        assert identities(found) == ids, outcome.where
        assert (remove(found, clock) is not None) == mapping, outcome.where
        assert unmapped_rows(found) == before, outcome.where
        assert identities(found) == ids and removals(found) == 1, outcome.where
    count_cases("faults while column mapping is removed", len(cases))
