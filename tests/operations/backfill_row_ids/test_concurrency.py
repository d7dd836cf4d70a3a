"""Commits of other writers during a backfill."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from delta_maintenance.errors import CommitConflictError
from delta_maintenance.table.data.footers import RowCounts
from tests.support.operations.backfills import (
    SUSPENDED,
    TRACKED,
    apply,
    backfill,
    built,
    counting,
    latest,
    of,
    operations,
    plan_of,
    races,
    stats,
)
from tests.support.operations.row_ids import (
    RacedStore,
    append,
    check,
    compact,
    delete,
    delete_rows,
    state,
)
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder


@pytest.mark.conformance("RT-14", "RT-06")
def test_an_append_between_batches_moves_the_row_ids_of_the_next() -> None:
    table = built()
    store = table.store
    races(table, None, lambda: append(store, "n1"), None, lambda: append(store, "n2", 7))
    result = backfill(table)
    assert (result.status, result.files_backfilled) == ("enabled", 10)
    assert len(state(store)) == 12
    check(store)


@pytest.mark.conformance("RT-04", "RT-14")
def test_row_ids_that_others_assigned_above_the_mark_are_not_reused() -> None:
    table = built(*(log.add(f"f{n}") for n in range(10)))
    high = log.add("high", stats=stats(10), baseRowId=190, defaultRowCommitVersion=3)
    asked = []

    def count(paths: pa.StringArray) -> RowCounts:
        asked.append(paths)
        # Each batch is counted once before the first commit, and once for its own.
        if len(asked) == 3 + 2:
            table.commit([high], version=latest(table) + 1)
        return RowCounts(counts=pa.array([30] * len(paths), pa.int64()))

    result = apply(table, plan_of(table), engine=count)
    assert (result.status, result.high_water_mark) == ("enabled", 200 + 6 * 30 - 1)
    assert table.open().snapshot().counts.num_files == 11


@pytest.mark.conformance("RT-14", "RT-07")
def test_a_file_that_others_remove_does_not_come_back() -> None:
    table = built()
    store = table.store
    races(
        table,
        lambda: delete(store, "f9"),
        lambda: delete(store, "f0"),
        lambda: delete(store, "f8"),
        lambda: compact(store, "f1", "f2", into="c", rows=3),
    )
    result = backfill(table)
    assert result.status == "enabled"
    assert {a["add"]["path"] for a in state(store)} == {"f3", "f4", "f5", "f6", "f7", "c"}
    check(store)


@pytest.mark.conformance("RT-14", "DV-13")
def test_rows_that_others_delete_do_not_come_back() -> None:
    first, second = (log.deletion_vector(text * 20) for text in "ab")
    table = built(
        *(log.add(f"f{n}", stats=stats(5)) for n in range(8)),
        protocol=log.features("deletionVectors"),
    )
    store = table.store
    races(
        table,
        lambda: delete_rows(store, "f7", first),
        lambda: delete_rows(store, "f1", first),
        lambda: delete_rows(store, "f1", second),
        lambda: delete_rows(store, "f6", second),
    )
    engine = counting({f"f{n}": 5 for n in range(8)})
    assert apply(table, plan_of(table), engine=engine).status == "enabled"
    vectors = {a["add"]["path"]: a["add"].get("deletionVector") for a in state(store)}
    assert len(state(store)) == 8
    assert vectors == {f"f{n}": None for n in range(8)} | {"f7": first, "f1": second, "f6": second}
    check(store)


def test_an_empty_batch_is_not_committed() -> None:
    table = built(*(log.add(f"f{n}", stats=stats(1)) for n in range(4)))
    store = table.store
    races(table, None, lambda: [delete(store, f"f{n}") for n in range(4)])
    assert backfill(table).num_commits == 2
    assert "ROW TRACKING BACKFILL" not in operations(table)


def test_a_second_backfill_at_the_same_time_does_no_harm() -> None:
    table = built()
    first, second = plan_of(table, operation_id="task"), plan_of(table, files_per_commit=3)
    races(table, None, None, lambda: apply(table, second))
    result = apply(table, first)
    assert (result.status, result.files_backfilled) == ("enabled", 4)
    assert operations(table).count("SET TBLPROPERTIES") == 1
    check(table.store)


@pytest.mark.conformance("RT-13")
def test_a_zombie_with_the_same_task_does_no_harm() -> None:
    table = built()
    plan = plan_of(table, operation_id="task")
    races(table, lambda: apply(table, plan))
    result = apply(table, plan)
    assert result.status == "enabled" and result.num_commits == 0
    assert operations(table) == [
        "UPGRADE PROTOCOL",
        *["ROW TRACKING BACKFILL"] * 3,
        "SET TBLPROPERTIES",
    ]
    ids = [info["operationId"] for _, info in of(table, "commitInfo")]
    assert len(set(ids)) == 5 and all(each.startswith("task/") for each in ids)
    assert apply(table, plan).status == "enabled"
    check(table.store)


@pytest.mark.conformance("RT-11")
def test_a_writer_that_assigns_no_row_ids_is_reported() -> None:
    table = built()
    races(table, None, None, None, None, lambda: rogue(table, 0))
    assert backfill(table, checkpoint=False).status == "enabled"
    check(table.store)

    table = built(*(log.add(f"f{n}", stats=stats(2)) for n in range(2)))
    rogues: list[Callable[[], object] | None] = [None, None]
    for number in range(5):
        rogues += [partial(rogue, table, number), None]
    races(table, *rogues)
    result = backfill(table, checkpoint=False)
    assert result.status == "incomplete"
    assert "other writers keep adding files without row IDs" in str(result.problem)
    check(table.store, enabled=False)


def rogue(table: TableBuilder, number: int) -> None:
    """A writer that ignores row tracking."""
    table.commit([log.add(f"rogue{number}", stats=stats(2))], version=latest(table) + 1)


def suspend(table: TableBuilder) -> None:
    table.commit([log.metadata(configuration=SUSPENDED)], version=latest(table) + 1)


def test_a_suspension_by_somebody_else_ends_the_backfill() -> None:
    table = built()
    races(table, None, None, lambda: suspend(table))
    result = backfill(table)
    assert (result.status, result.num_commits, result.files_backfilled) == ("incomplete", 2, 4)
    assert "row tracking is suspended" in str(result.problem)
    assert not any(a.get("baseRowId") is not None for v, a in of(table, "add") if v > 3)


def test_a_suspension_after_the_plan_is_not_lifted() -> None:
    table = built(protocol=TRACKED)
    plan = plan_of(table, lift_suspension=True)
    suspend(table)
    with pytest.raises(CommitConflictError, match="row tracking is suspended after a commit"):
        apply(table, plan)
    assert of(table, "metaData")[-1][1]["configuration"] == SUSPENDED


def test_a_suspension_just_before_the_end_keeps_row_tracking_from_being_enabled() -> None:
    table = built()
    races(table, None, None, None, None, lambda: suspend(table))
    result = backfill(table, checkpoint=False)
    assert result.status == "incomplete" and "suspended" in str(result.problem)
    configuration = of(table, "metaData")[-1][1]["configuration"]
    assert "delta.enableRowTracking" not in configuration


def test_a_property_that_somebody_sets_meanwhile_is_kept() -> None:
    table = built()

    def configure(**configuration: str) -> None:
        both = [log.metadata(configuration=configuration)]
        table.commit(both, version=latest(table) + 1)

    races(
        table,
        partial(configure, first="1"),
        None,
        partial(configure, first="1", second="2"),
        None,
        None,
        partial(append, table.store, "late"),
        partial(configure, first="1", third="3"),
    )
    assert backfill(table, checkpoint=False).status == "enabled"
    configuration = of(table, "metaData")[-1][1]["configuration"]
    assert (configuration["first"], configuration["third"]) == ("1", "3")
    assert "second" not in configuration
    check(table.store)


@pytest.mark.conformance("ICT-03")
def test_in_commit_timestamps_rise_with_every_commit() -> None:
    in_commit = log.protocol(1, 7, writer_features=["inCommitTimestamp"])
    table = TableBuilder(RacedStore())
    far = 4_000_000_000_000
    table.commit(
        [
            log.commit_info(inCommitTimestamp=far),
            in_commit,
            log.metadata(configuration={"delta.enableInCommitTimestamps": "true"}),
            *(log.add(f"f{n}", stats=stats(n)) for n in range(10)),
        ]
    )
    store = table.store
    races(table, None, None, lambda: append(store, "n"))
    assert backfill(table).status == "enabled"
    times = [info["inCommitTimestamp"] for _, info in of(table, "commitInfo")]
    assert times == list(range(far, far + 7))
    check(store)
