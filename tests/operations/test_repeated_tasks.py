"""A task runs twice, and in between another writer undoes its change, which must stay undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delta_maintenance.errors import CommitConflictError, RefusedError
from delta_maintenance.operations import (
    add_constraint,
    backfill_row_ids,
    checkpoint,
    drop_feature,
    set_clustering,
    set_properties,
    upgrade_protocol,
)
from delta_maintenance.operations.add_constraint import CheckedRows
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage import MemoryStore
from tests.support.operations.row_ids import RacedStore
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

pytestmark = pytest.mark.cases

HOUR_MS = 3_600_000
STATS = '{"numRecords":3,"minValues":{"id":1},"maxValues":{"id":3},"nullCount":{"id":0}}'
TRACKED = log.features(writer_only=["domainMetadata", "rowTracking"])
V2 = log.features("v2Checkpoint")


@dataclass(frozen=True)
class Case:
    """An operation, the table it is run on, and what undoes it."""

    module: Any
    asked: Mapping[str, Any]
    options: type[Any]
    begin: log.Action
    """The protocol before."""
    undone: log.Action
    """The protocol that is restored."""
    applied: Mapping[str, Any] | None = None


def satisfied(*_: object, **__: object) -> CheckedRows:
    return CheckedRows()


CASES = {
    "set-properties": Case(
        set_properties,
        {"properties": {"delta.appendOnly": "true"}},
        set_properties.SetPropertiesOptions,
        log.protocol(1, 2),
        log.protocol(1, 2),
    ),
    "set-clustering": Case(
        set_clustering,
        {"by": ("id",)},
        set_clustering.SetClusteringOptions,
        log.protocol(1, 2),
        log.protocol(1, 2),
    ),
    "upgrade-protocol": Case(
        upgrade_protocol,
        {"features": ("rowTracking",)},
        upgrade_protocol.UpgradeProtocolOptions,
        log.protocol(1, 2),
        log.protocol(1, 2),
    ),
    "add-constraint": Case(
        add_constraint,
        {"name": "positive", "expression": "id > 0"},
        add_constraint.AddConstraintOptions,
        log.protocol(1, 3),
        log.protocol(1, 3),
        applied={"engine": satisfied},
    ),
    "drop-feature": Case(
        drop_feature, {"feature": "v2Checkpoint"}, drop_feature.DropFeatureOptions, V2, V2
    ),
    "backfill-row-ids": Case(
        backfill_row_ids,
        {"files_per_commit": 1},
        backfill_row_ids.BackfillRowIdsOptions,
        log.protocol(1, 2),
        log.protocol(1, 2),
    ),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


class Clock:
    """The time of a table and of its writers."""

    def __init__(self) -> None:
        self.ms = EPOCH_MS + HOUR_MS

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.ms / 1000, UTC)

    def govern(self, table: TableBuilder) -> None:
        assert isinstance(table.store, MemoryStore)
        table.store.now_ms = lambda: self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def built(case: Case, clock: Clock, store: MemoryStore | None = None) -> TableBuilder:
    table = TableBuilder(store or MemoryStore())
    files = [log.add(f"f{n}", stats=STATS) for n in range(2)]
    table.commit([case.begin, log.metadata(), *files])
    clock.govern(table)
    return table


def commit(table: TableBuilder, clock: Clock, *lines: log.Action) -> None:
    table.commit(lines, version=latest(table) + 1, at_ms=clock.ms)
    clock.govern(table)


def planned(case: Case, table: TableBuilder, clock: Clock, **given: Any) -> Any:
    options = case.options(**case.asked, **given)
    return case.module.plan(table.open().snapshot(), options)


def applied(case: Case, table: TableBuilder, clock: Clock, plan: Any) -> Any:
    return case.module.apply(table.open(), plan, RunContext(**(case.applied or {})))


def run(case: Case, table: TableBuilder, clock: Clock, **given: Any) -> str:
    status = applied(case, table, clock, planned(case, table, clock, **given)).status
    assert isinstance(status, str)
    return status


def latest(table: TableBuilder) -> int:
    return table.open().latest_version()


def undo(case: Case, table: TableBuilder, clock: Clock) -> None:
    """Undoes the change, and adds a later commit."""
    mark = log.domain("delta.rowTracking", "{}", removed=True)
    used = {"delta.checkpointPolicy": "v2"} if case.undone is V2 else {}
    metadata = log.metadata(configuration=used)
    commit(table, clock, log.commit_info("RESTORE"), case.undone, metadata, mark)
    commit(table, clock, log.commit_info("WRITE"), log.add("more", stats=STATS))


def nothing(table: TableBuilder, clock: Clock) -> None:
    pass


def write_checkpoint(table: TableBuilder, clock: Clock) -> None:
    snapshot = table.open().snapshot()
    checkpoint.apply(table.open(), checkpoint.plan(snapshot, context=RunContext.at(clock.now())))


@pytest.mark.conformance("TXN-08")
@each
@pytest.mark.parametrize("told", [False, True], ids=["began: unknown", "began: told"])
@pytest.mark.parametrize("then", [nothing, write_checkpoint])
def test_a_retry_that_plans_again_finds_the_commit_of_the_first_try(
    case: Case, told: bool, then: Callable[[TableBuilder, Clock], None], clock: Clock
) -> None:
    table = built(case, clock)
    write_checkpoint(table, clock)
    clock.ms += HOUR_MS
    began = clock.now() if told else None
    task = {"operation_id": "task", "operation_since": began}
    assert run(case, table, clock, **task) in ("committed", "dropped", "enabled")
    undo(case, table, clock)
    clock.ms += 5 * HOUR_MS
    then(table, clock)
    before = table.names()

    plan = planned(case, table, clock, **task)
    assert plan.is_noop and "this task" in plan.reason
    assert applied(case, table, clock, plan).status == "nothing-to-do"
    assert table.names() == before

    assert run(case, table, clock, operation_id="another", operation_since=began) in (
        "committed",
        "dropped",
        "enabled",
    )


@pytest.mark.conformance("TXN-08")
@each
def test_a_delayed_process_finds_the_commit_of_its_twin(case: Case, clock: Clock) -> None:
    table = built(case, clock)
    task = {"operation_id": "task"} if case.module is backfill_row_ids else {}
    plan = planned(case, table, clock, **task)
    assert applied(case, table, clock, plan).status in ("committed", "dropped", "enabled")
    undo(case, table, clock)
    before = latest(table)
    assert applied(case, table, clock, plan).status in ("already-done", "dropped", "enabled")
    assert latest(table) == before


def test_a_backfill_does_not_restore_support_that_was_removed(clock: Clock) -> None:
    case = CASES["backfill-row-ids"]
    table = built(case, clock)
    info = log.commit_info("UPGRADE PROTOCOL", operationId="task/support")
    commit(table, clock, info, TRACKED)
    undo(case, table, clock)
    with pytest.raises(RefusedError, match="another writer has changed it since"):
        planned(case, table, clock, operation_id="task")


def test_a_running_backfill_does_not_restore_support_that_was_removed(clock: Clock) -> None:
    case = CASES["backfill-row-ids"]
    table = built(case, clock, RacedStore())
    plan = planned(case, table, clock, operation_id="task")

    def twin_and_undo() -> None:
        info = log.commit_info("UPGRADE PROTOCOL", operationId="task/support")
        commit(table, clock, info, TRACKED)
        undo(case, table, clock)

    assert isinstance(table.store, RacedStore)
    table.store.races = [twin_and_undo]
    with pytest.raises(CommitConflictError, match="row tracking is unsupported after"):
        applied(case, table, clock, plan)


def test_a_backfill_continues_after_its_first_try_died(clock: Clock) -> None:
    case = CASES["backfill-row-ids"]
    table = built(case, clock)
    info = log.commit_info("UPGRADE PROTOCOL", operationId="task/support")
    commit(table, clock, info, TRACKED)
    began = clock.now() - timedelta(hours=1)
    assert run(case, table, clock, operation_id="task", operation_since=began) == "enabled"


@pytest.mark.parametrize("name", ["backfill-row-ids", "drop-feature"])
def test_a_running_process_finds_that_its_twin_completed_the_work(name: str, clock: Clock) -> None:
    case, table = CASES[name], built(CASES[name], clock, RacedStore())
    plan = planned(case, table, clock, operation_id="task")
    ended = 0

    def twin_and_undo() -> None:
        nonlocal ended
        assert applied(case, table, clock, plan).status in ("dropped", "enabled")
        ended = latest(table)
        # The earlier state, except for the preparation that both runs share.
        begun = TRACKED if name == "backfill-row-ids" else case.begin
        commit(table, clock, log.commit_info("RESTORE"), begun, log.metadata())

    assert isinstance(table.store, RacedStore)
    table.store.races = [twin_and_undo]
    result = applied(case, table, clock, plan)
    assert (result.status, result.version) == (
        "dropped" if name == "drop-feature" else "enabled",
        ended,
    )
    infos = [entry.commit_info for entry in table.open().history()]
    ids = [info["operationId"] for info in infos if "operationId" in info]
    assert len(ids) == len(set(ids))
