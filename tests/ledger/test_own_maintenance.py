"""A policy maintains its ledger, while rows are added to it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance import clock, open_table
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.ledger import Delivery, LedgerTable
from delta_maintenance.ledger.recording import Recorder
from delta_maintenance.ledger.rows import Origin, rows_of
from delta_maintenance.policies import (
    LastRun,
    OperationOutcome,
    RunEnvironment,
    RunResult,
    assess_table,
)
from delta_maintenance.policies.definition import Policy, load_policy
from delta_maintenance.policies.discovery import discover
from delta_maintenance.policies.run import run
from delta_maintenance.storage import MemoryStore, open_store
from delta_maintenance.table.read import Table
from tests.support.tables.overdue_tables import fingerprint, overdue_table

COMMITS, A_DAY = 500, 8


def delivery(number: int, now: datetime) -> Delivery:
    done = OperationOutcome(
        operation="checkpoint", status="done", reason=f"{number}", started_at=now
    )
    result = RunResult(
        name="t", uri="/t", status="done", started_at=now, ended_at=now, outcomes=(done,)
    )
    rows = rows_of(result, Origin(done_by="cli", run_id=f"run-{number}"))
    return Delivery(run_id=f"run-{number}", rows=rows, since_version=None)


def policy_of(tmp_path: Path, **document: Any) -> Policy:
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump({"version": 1, **document}))
    return load_policy(path)


class Days:
    """A clock that stands still until the next day begins."""

    def __init__(self) -> None:
        self._now = datetime(2026, 9, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self._now

    def go_on(self) -> None:
        self._now += timedelta(days=1)


@pytest.mark.slow
def test_all_rows_stay_and_the_log_is_short_although_rows_are_added_meanwhile(
    tmp_path: Path,
) -> None:
    (rules,) = discover(policy_of(tmp_path, ledger=str(tmp_path / "ledger"))).tables
    now, appended, allowed = Days(), threading.Semaphore(0), threading.Semaphore(2 * A_DAY)
    store = MemoryStore(now_ms=lambda: clock.epoch_millis(now()))
    problems: list[Exception] = []

    def record() -> None:
        for number in range(COMMITS):
            allowed.acquire()
            try:
                LedgerTable(store, now=now).append(delivery(number, now()))
            except Exception as error:
                problems.append(error)
            appended.release()

    writer = threading.Thread(target=record)
    writer.start()
    done: list[str] = []
    last_runs: Sequence[LastRun] = ()
    for _ in range(COMMITS // A_DAY):
        for _ in range(A_DAY):
            assert appended.acquire(timeout=60)
        now.go_on()
        # The rows of the next day are added meanwhile.
        allowed.release(A_DAY)
        result = run(Table(store), rules, last_runs=last_runs, environment=RunEnvironment(now=now))
        assert result.exit_status == 0, result.problem
        last_runs = result.last_runs
        done += [each.operation for each in result.outcomes if each.status == "done"]
    writer.join()
    assert not problems
    assert {"checkpoint", "optimize", "vacuum", "clean-log"} <= set(done)
    rows = LedgerTable(store).read(("row_id",))["row_id"].to_pylist()
    assert sorted(rows) == sorted(f"run-{number}-0" for number in range(COMMITS))
    health = assess_table(Table(store), rules, now=now()).health
    assert health is not None and health.commits_since_checkpoint < 100 + A_DAY
    files = [
        path
        for listed in store.list_tree()
        for path in listed["path"].to_pylist()
        if path.endswith(".parquet")
    ]
    assert health.num_files < 100 and len(files) < COMMITS // 2
    # The log has the commits of its retention, of which two months have passed.
    log = [each.path for each in store.list_from("_delta_log")]
    assert len(log) < COMMITS and f"_delta_log/{100:020}.json" not in log


def test_a_ledger_that_does_not_exist_yet_is_no_failure(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, ledger=str(tmp_path / "ledger"))
    (table,) = discover(policy).tables
    result = run(open_table(table.uri), table)
    assert (table.name, result.status, result.exit_status) == ("ledger", "nothing-due", 0)
    assert not (tmp_path / "ledger").exists()


def test_it_is_maintained_by_rules_of_its_own_that_can_be_changed(tmp_path: Path) -> None:
    document = {"defaults": {"expire": {"column": "day", "older_than": "365 days"}}}
    address = str(tmp_path / "ledger")
    (plain,) = discover(policy_of(tmp_path, ledger=address, **document)).tables
    assert plain.rules.value("expire") is None, "the defaults are for other tables"
    assert plain.rules.checkpoint.max_commits == 100 and not plain.rules.approval
    assert plain.rules.other_writers == "conditional_put"
    given = {"checkpoint": {"max_commits": 7}, "vacuum": False, "approval": ["clean-log"]}
    changed = policy_of(tmp_path, ledger={"uri": address, "maintenance": given}, **document)
    (table,) = discover(changed).tables
    assert table.rules.checkpoint.max_commits == 7 and table.rules.optimize is not None
    assert table.rules.vacuum is None and table.rules.approval == ("clean-log",)
    # As the tasks of orchestrators find it.
    assert changed.table_at(f"file://{address}/", name="ledger").rules == table.rules
    assert changed.address_of("ledger") == address and changed.has_table_at(address)


def test_it_can_be_turned_off_or_be_a_table_like_others(tmp_path: Path) -> None:
    address = str(tmp_path / "ledger")
    off = policy_of(tmp_path, ledger={"uri": address, "maintenance": False})
    assert discover(off).tables == () and not off.has_table_at(address)
    entry = {"name": "log", "uri": f"file://{address}", "checkpoint": True}
    own = policy_of(tmp_path, ledger=address, tables=[entry])
    (table,) = discover(own).tables
    assert (table.name, table.rules.vacuum) == ("log", None)
    assert not table.is_ledger


def test_it_has_another_name_if_a_table_has_its_name(tmp_path: Path) -> None:
    address = str(tmp_path / "ledger")
    entry = {"name": "ledger", "uri": str(tmp_path / "books")}
    found = discover(policy_of(tmp_path, ledger=address, tables=[entry])).tables
    assert [each.name for each in found] == ["ledger", address]


def test_a_pattern_that_finds_it_gives_it_a_name_and_not_its_rules(tmp_path: Path) -> None:
    address = str(tmp_path / "lake/ledger")
    LedgerTable(open_store(address)).append(delivery(1, clock.now()))
    pattern = {"name": "lake", "pattern": f"{tmp_path}/lake/**", "vacuum": {"every": "365 days"}}
    (table,) = discover(policy_of(tmp_path, ledger=address, tables=[pattern])).tables
    assert (table.name, table.rules.vacuum.every) == ("lake/ledger", timedelta(days=7))


def test_another_table_at_its_address_is_left_alone(tmp_path: Path) -> None:
    table = overdue_table(tmp_path / "data")
    before = fingerprint(tmp_path / "data")
    (found,) = discover(policy_of(tmp_path, ledger=str(tmp_path / "data"))).tables
    result = run(table.open(), found)
    assert (result.status, result.exit_status) == ("nothing-due", 0)
    assert result.before is not None and result.before.notes == ("the table is no ledger",)
    assert fingerprint(tmp_path / "data") == before


def test_it_is_recorded_only_if_it_was_not_idle(tmp_path: Path) -> None:
    address = str(tmp_path / "ledger")
    recorder = Recorder(
        open_ledger=lambda: LedgerTable(open_store(address)), state=None, address=address
    )
    recorder.open_ledger().append(delivery(1, clock.now()))
    (table,) = discover(policy_of(tmp_path, ledger=address)).tables
    result = run(open_table(address), table)
    assert [(each.operation, each.status) for each in result.outcomes] == [
        ("vacuum", "nothing-to-do")
    ]
    assert recorder.record(result, Origin(done_by="cli", run_id="own")) == []
    assert recorder.open_ledger().version() == 1
    done = replace(result, outcomes=(replace(result.outcomes[0], status="done"),))
    assert recorder.record(done, Origin(done_by="cli", run_id="own")) == []
    assert recorder.open_ledger().version() == 2


@pytest.mark.parametrize(
    ("ledger", "table"),
    [
        ("/lake", {"uri": "/lake/orders"}),
        ("/lake/orders/ledger", {"uri": "file:///lake/orders/"}),
        # A search does not enter tables, and the ledger would be one.
        ("/lake", {"pattern": "/lake/**"}),
        ("s3://lake", {"pattern": "s3a://lake/tables/*"}),
    ],
)
def test_a_ledger_around_or_within_a_table_is_refused(
    ledger: str, table: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError, match="give the ledger a folder of its own"):
        policy_of(tmp_path, ledger=ledger, tables=[table])


def test_a_ledger_beside_tables_or_among_those_of_a_pattern_is_accepted(tmp_path: Path) -> None:
    tables = [{"uri": "/lake/orders"}, {"pattern": "/lake/**"}]
    for ledger in ("/lake/orders2", "/lake/orders"):
        assert policy_of(tmp_path, ledger=ledger, tables=tables).ledger is not None
