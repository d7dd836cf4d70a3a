"""Clocks that are wrong: nothing ends earlier than by the clock of the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import clean_log, expire, vacuum
from delta_maintenance.operations.clean_log import CleanLogOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.core.assessment import LastRun
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.policies.assess import assess
from delta_maintenance.table.read import Table
from tests.operations.expire.test_operation import NOW, Aged, numbers
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import add, remove
from tests.support.tables.policy_tables import asked, only
from tests.support.tables.vacuum_tables import Folder, days_ago

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
OFF = [-10 * DAY, -DAY, -4 * MINUTE, timedelta(), 4 * MINUTE, 6 * MINUTE, 5 * DAY, 10 * DAY]
AGES = tuple(range(20, 40))
"""In days. The limits are 30 days."""


@dataclass
class Case:
    """A planned operation whose limit is 30 days."""

    apply: Callable[[RunContext], Any]
    lost: Callable[[], set[Any]]
    """What is gone although it is younger."""


def aged(context: RunContext) -> Case:
    table = Aged()
    first = table.count
    for age in AGES:
        table.append(age)
    at(table.store)
    options = ExpireOptions(column="t", older_than=30 * DAY, allow_large_delete=True)
    plan = expire.plan(Table(table.store).snapshot(), options, context)
    young = {first + number for number, age in enumerate(AGES) if age < 30}
    return Case(
        lambda context: expire.apply(Table(table.store), plan, context),
        lambda: young - numbers(table.store),
    )


def folder() -> Folder:
    """A file a day, each of which replaces the one before."""
    table = Folder(now=NOW)
    for age in reversed(AGES):
        gone = remove(f"{age + 1}.parquet", deletionTimestamp=days_ago(age, NOW))
        replaced = [gone] if age + 1 in AGES else []
        table.log(add(f"{age}.parquet"), *replaced, days=age)
        table.file(f"{age}.parquet")
    for version in range(1, len(AGES) + 1):
        table.checkpoint(version)
    at(table.store)
    return table


def vacuumed(context: RunContext) -> Case:
    table = folder()
    options = VacuumOptions(retention=30 * DAY)
    plan = vacuum.plan(table.open().snapshot(), options, context)
    young = {f"{age + 1}.parquet" for age in AGES if age < 30}
    return Case(
        lambda context: vacuum.apply(table.open(), plan, context), lambda: young - table.files()
    )


def cleaned(context: RunContext) -> Case:
    table = folder()
    options = CleanLogOptions(log_retention=30 * DAY)
    plan = clean_log.plan(table.open().snapshot(), options, context)
    young = {f"{1 + AGES[-1] - age:020}.json" for age in AGES if age < 30}
    return Case(
        lambda context: clean_log.apply(table.open(), plan, context),
        lambda: young - set(table.names()),
    )


def at(store: Any) -> None:
    store.now_ms = lambda: epoch_millis(NOW)


def by(off: timedelta) -> RunContext:
    """A context whose clock is wrong."""
    return RunContext.at(NOW + off, sleep=lambda _: None)


CASES = pytest.mark.parametrize("case", [aged, vacuumed, cleaned], ids=lambda case: case.__name__)


@pytest.mark.parametrize("off", OFF, ids=str)
@CASES
def test_a_wrong_clock_deletes_nothing_that_the_time_of_the_store_keeps(
    case: Callable[[RunContext], Case], off: timedelta
) -> None:
    made = case(by(off))
    try:
        done = made.apply(by(off)).status
        # A slow clock finds nothing.
        assert done in ("expired", "vacuumed", "cleaned") if abs(off) <= 5 * MINUTE else off < -DAY
    except RefusedError as error:
        assert abs(off) > 5 * MINUTE
        assert "clocks of the store and of this machine differ by" in error.problem
    assert not made.lost()


@CASES
def test_a_plan_by_a_fast_clock_is_refused_once_the_clock_is_right(
    case: Callable[[RunContext], Case],
) -> None:
    for off in (6 * MINUTE, 5 * DAY):
        made = case(by(off))
        with pytest.raises(RefusedError, match="the plan was made .* from now"):
            made.apply(by(timedelta()))
        assert not made.lost()


@pytest.mark.parametrize("lately", [True, False])
def test_a_log_with_a_file_of_the_last_minutes_needs_no_temporary_file(lately: bool) -> None:
    store = CountingStore()
    table = Aged(store)
    table.append(60)
    at(store)
    if lately:
        store.put(f"_delta_log/{6:020}.json", b'{"commitInfo":{}}')
    options = ExpireOptions(column="t", older_than=30 * DAY, allow_large_delete=True)
    plan = expire.plan(Table(store).snapshot(), options, by(MINUTE))
    assert expire.apply(Table(store), plan, by(MINUTE)).status == "expired"
    assert any(each.endswith(".tmp") for each in store.requests) is not lately


@pytest.mark.parametrize("verb", ["vacuum", "fsck"])
def test_a_run_that_a_fast_clock_recorded_postpones_nothing(verb: str) -> None:
    table = Folder(now=NOW)
    table.log(add("a.parquet"))

    def due(days: int) -> str:
        status = {"vacuum": "vacuumed", "fsck": "sound"}[verb]
        run = LastRun(operation=verb, at=NOW + days * DAY, version=1, status=status)
        rules = asked(**{verb: {"every": "7 days"}})
        return only(assess(table.open().snapshot(), rules, now=NOW, last_runs=[run])).status

    assert [due(days) for days in (-8, -1, 10)] == ["due", "not-due", "due"]
