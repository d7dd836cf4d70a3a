"""Who holds files of a table: what assessments say of it, and what an approved plan makes of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.cli.main import main
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import clean_log, vacuum
from delta_maintenance.operations.clean_log import CleanLogOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.holds import Holders
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.policies import LastRun, RunResult, assess_table
from delta_maintenance.policies.approval import Approvals, ApprovedPlan
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Table
from tests.operations.holds.test_readers import replaced, stream
from tests.operations.holds.test_streams import offset
from tests.operations.keep_version.test_kept_versions import keep
from tests.support.operations.vacuum_cases import removed
from tests.support.tables.actions import add
from tests.support.tables.vacuum_tables import NOW, Folder, named_memory


class Orders:
    """A table whose five versions a stream has read up to the third; the second one is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        store = named_memory(f"memory://{path.name}/orders")
        self.table = replaced(store=store)
        self.last_runs: tuple[LastRun, ...] = ()
        self.reads_up_to(2, 3)
        keep(self.table, "audit", keep=2, until=NOW + timedelta(days=3), why="for the auditors")

    def reads_up_to(self, *versions: int) -> None:
        """The stream has committed batches that end with these versions."""
        stream(self.path, *(offset(version + 1) for version in versions))

    def policy(self, **rules: Any) -> PolicyTable:
        readers = [{"stream": f"memory://{self.path.name}/state", "name": "silver"}]
        entry = {"uri": self.table.store.root, "readers": readers, **rules}
        return Policy.from_json({"version": 1, "tables": [entry]}).named_tables[0]

    def run(self, operation: str = "vacuum", *, now: datetime = NOW, **options: Any) -> RunResult:
        assert isinstance(self.table.store, MemoryStore)
        self.table.store.now_ms = lambda: epoch_millis(now)
        result = run_operation(
            self.table.open(),
            self.policy(),
            operation,
            last_runs=self.last_runs,
            environment=RunEnvironment(now=lambda: now),
            **options,
        )
        self.last_runs = result.last_runs
        return result

    def held(self, now: datetime = NOW, **rules: Any) -> dict[str, tuple[int, int]]:
        """The files and the bytes of each holder, by an assessment."""
        assessed = assess_table(
            self.table.open(), self.policy(**rules), now=now, last_runs=self.last_runs
        )
        return {each.holder: (each.files, each.bytes) for each in assessed.held}

    def approved(self, operation: str = "vacuum") -> ApprovedPlan:
        (outcome,) = self.run(operation, plan_only=True).outcomes
        assert outcome.status == "planned", outcome.reason
        return ApprovedPlan.from_json(ApprovedPlan.of(outcome).to_json())


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path)


def test_an_assessment_says_who_holds_what_the_last_runs_kept(orders: Orders) -> None:
    # Nobody has counted yet.
    assert orders.held() == {"kept version audit": (0, 0)}
    done = orders.run()
    assert done.status == "done" and orders.table.files() == {f"{n}.parquet" for n in (2, 3, 4, 5)}
    both = {"stream silver": (3, 3), "kept version audit": (1, 1)}
    assert orders.held() == both
    assert done.after is not None and [str(each) for each in done.after.held] == [
        "stream silver: 3 files (3 B), version 2 and all later ones, has read up to version 3, "
        "last progress 2026-06-29T12:00:00Z",
        "kept version audit: 1 file (1 B), version 2, until 2026-07-03T12:00:00Z, for the auditors",
    ]
    # A reader that the policy does not name any more, and a name that has ended, hold nothing.
    assert orders.held(readers=[]) == {"kept version audit": (1, 1)}
    assert orders.held(now=NOW + timedelta(days=3)) == {"stream silver": (3, 3)}
    keep(orders.table, "audit", release=True)
    assert orders.held() == {"stream silver": (3, 3)}


def test_the_files_of_data_and_of_the_log_are_counted_together(orders: Orders) -> None:
    for version in (1, 2, 5):
        orders.table.checkpoint(version)
    orders.run()
    orders.run("clean-log")
    # Commits 2 to 4, and the checkpoint of version 2.
    files, size = orders.held()["stream silver"]
    assert files == 3 + 4 and size > 100


def test_a_run_that_fails_says_nothing_new_of_holders(orders: Orders) -> None:
    orders.run()
    state = MemoryStore(Address.parse(f"memory://{orders.path.name}/state"))
    state.put("offsets/1", b"?")
    assert orders.run().status == "failed"
    assert orders.held()["stream silver"] == (3, 3)


def test_the_terminal_names_holders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = clock.now()
    table = Folder(tmp_path / "orders", now=now)
    table.log(add("a.parquet"))
    table.log(removed("a.parquet", 90), add("b.parquet"), days=30)
    table.file("a.parquet", "b.parquet", days=50)
    config = tmp_path / "policy.yaml"
    config.write_text(f"version: 1\ntables: [{{uri: {tmp_path}/orders, vacuum: true}}]\n")
    assert main(["keep-version", str(tmp_path / "orders"), "audit", "--version", "1"]) == 0
    state = ["--state", str(tmp_path / "state")]
    assert main(["assess", str(config), *state]) == 0
    assert ", held by kept version audit\n" in capsys.readouterr().out
    assert main(["assess", str(config), *state, "--reasons"]) == 0
    assert "by kept version audit: version 1" in capsys.readouterr().out
    assert main(["run", str(config), *state]) == 0
    capsys.readouterr()
    assert main(["assess", str(config), *state, "--reasons"]) == 0
    assert "by kept version audit: 1 file (1 B), version 1" in capsys.readouterr().out
    assert main(["health", str(tmp_path / "orders")]) == 0
    assert "held by" in (shown := capsys.readouterr().out) and "kept version audit" in shown
    assert table.files() == {"a.parquet", "b.parquet"}


def moves_on(orders: Orders) -> None:
    orders.reads_up_to(2, 3, 5, 5)


def is_released(orders: Orders) -> None:
    keep(orders.table, "audit", release=True)


def starts_again(orders: Orders) -> None:
    orders.reads_up_to(0, 1)


def is_kept(orders: Orders) -> None:
    keep(orders.table, "model", keep=1)


LESS = [moves_on, is_released]
MORE = [starts_again, is_kept]


def both_hold(orders: Orders, change: Callable[[Orders], None]) -> None:
    """The other holder must not hide what the change does."""
    if change is is_released:
        orders.reads_up_to(2, 3, 5, 5)
    if change is moves_on:
        keep(orders.table, "audit", release=True)


@pytest.mark.parametrize("change", LESS, ids=lambda each: each.__name__)
def test_an_approved_vacuum_deletes_what_was_approved_though_less_is_held_now(
    orders: Orders, change: Callable[[Orders], None]
) -> None:
    both_hold(orders, change)
    plan = orders.approved()
    going = {"1.parquet", "3.parquet", "4.parquet"} if change is is_released else {"1.parquet"}
    change(orders)
    before = orders.table.files()
    later = NOW + timedelta(hours=5)
    result = orders.run(now=later, approvals=Approvals(plans=(plan,)))
    assert result.status == "done", result.problem
    assert before - orders.table.files() == going
    # The next plan deletes the rest.
    assert orders.run(now=later).status == "done"
    assert orders.table.files() == {"5.parquet"}


@pytest.mark.parametrize("change", MORE, ids=lambda each: each.__name__)
def test_an_approved_vacuum_is_refused_if_more_is_held_now(
    orders: Orders, change: Callable[[Orders], None]
) -> None:
    plan = orders.approved()
    change(orders)
    before = orders.table.files()
    result = orders.run(now=NOW + timedelta(hours=5), approvals=Approvals(plans=(plan,)))
    assert (result.status, result.exit_status) == ("failed", 3)
    assert "would now have another effect than the approved one" in (result.problem or "")
    assert orders.table.files() == before


def test_an_approved_vacuum_is_refused_if_what_was_held_cannot_be_opened(orders: Orders) -> None:
    plan = orders.approved()
    orders.table.checkpoint(5)
    for version in range(5):
        orders.table.store.delete(f"_delta_log/{version:020}.json")
    keep(orders.table, "audit", release=True)
    orders.reads_up_to(2, 3, 5, 5)
    result = orders.run(approvals=Approvals(plans=(plan,)))
    assert "which was held when the plan was made, cannot be opened" in (result.problem or "")
    assert "plan again" in (result.problem or "") and "1.parquet" in orders.table.files()


def test_a_plan_that_is_applied_without_its_survey_deletes_no_more_than_it_says(
    orders: Orders,
) -> None:
    table, context = Table(orders.table.store), RunContext.at(NOW)
    assert isinstance(orders.table.store, MemoryStore)
    orders.table.store.now_ms = lambda: epoch_millis(NOW)
    holders = Holders(readers=tuple(each.reader() for each in orders.policy().rules.readers))
    planned = vacuum.plan(table.snapshot(), VacuumOptions(holders=holders), context)
    is_released(orders)
    moves_on(orders)
    assert vacuum.apply(table, planned, context).deleted == planned.files == 1
    assert orders.table.files() == {f"{n}.parquet" for n in (2, 3, 4, 5)}


@pytest.mark.parametrize("approved", [True, False])
def test_a_clean_up_ends_where_its_plan_says(orders: Orders, approved: bool) -> None:
    for version in (1, 2, 4, 5):
        orders.table.checkpoint(version)
    holders = Holders(readers=tuple(each.reader() for each in orders.policy().rules.readers))
    table, context = Table(orders.table.store), RunContext.at(NOW)
    planned = clean_log.plan(table.snapshot(), CleanLogOptions(holders=holders), context)
    assert planned.oldest_version == 2
    plan = orders.approved("clean-log")
    is_released(orders)
    moves_on(orders)
    if approved:
        assert orders.run("clean-log", approvals=Approvals(plans=(plan,))).status == "done"
    else:
        clean_log.apply(table, planned, context)
    assert min(_versions(orders.table)) == 2
    assert orders.run("clean-log").status == "done"
    assert min(_versions(orders.table)) == 5


def test_a_clean_up_is_refused_if_more_is_held_now(orders: Orders) -> None:
    for version in (1, 2, 4, 5):
        orders.table.checkpoint(version)
    table, context = Table(orders.table.store), RunContext.at(NOW)
    planned = clean_log.plan(table.snapshot(), CleanLogOptions(), context)
    keep(orders.table, "model", keep=1)
    with pytest.raises(RefusedError, match="plan again"):
        clean_log.apply(table, planned, context)
    assert min(_versions(orders.table)) == 0


def _versions(table: Folder) -> list[int]:
    names = (status.path.rpartition("/")[2] for status in table.store.list_from("_delta_log"))
    return [int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit()]
