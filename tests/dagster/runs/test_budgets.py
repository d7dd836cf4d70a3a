"""The budget of a policy in Dagster's steps: which operations run, which wait, and what says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from delta_maintenance import clock
from delta_maintenance.ledger import LedgerTable
from delta_maintenance.policies import assess_table
from delta_maintenance.policies.budget.account import BudgetAccount
from delta_maintenance.policies.budget.estimates import CostHistory
from delta_maintenance.policies.definition import load_policy
from delta_maintenance.policies.discovery import open_policy_table
from delta_maintenance.storage import open_store
from delta_maintenance_dagster import DeltaTable, Execution, budgets, build_definitions
from delta_maintenance_dagster.table_run import TableRun
from tests.support.markdown import markdown_rows
from tests.support.tables.actions import add
from tests.support.tables.overdue_tables import overdue_table

JOB = "delta_maintenance"


@dataclass
class Lake:
    """Tables with a checkpoint that is due, a policy with a budget, and an instance of Dagster.

    The checkpoint of `lively` spares readers more than that of `idle`, at the same cost.
    """

    path: Path
    instance: dg.DagsterInstance
    policy: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        overdue_table(self.path / "idle", days=20)
        table = overdue_table(self.path / "lively", days=20)
        for number in range(20):
            table.log(add(f"late-{number}.parquet"), days=0)

    def cost(self, name: str) -> int:
        """The requests that the checkpoint of a table is expected to take."""
        self.write()
        table = load_policy(self.path / "policy.yaml").named_tables[("idle", "lively").index(name)]
        opened = open_policy_table(table, lambda *_: {})
        (due,) = assess_table(opened, table, now=clock.now()).due
        return int(CostHistory().expected("", due).costs["requests"])

    def write(self, budget: Any = None, **more: Any) -> None:
        self.policy = {
            "version": 1,
            "ledger": str(self.path / "ledger"),
            "defaults": {"checkpoint": {"max_commits": 5}},
            "tables": [
                {"name": name, "uri": str(self.path / name), **more.pop(name, {})}
                for name in ("idle", "lively")
            ],
            **more,
            **({} if budget is None else {"budget": budget}),
        }
        (self.path / "policy.yaml").write_text(yaml.safe_dump(self.policy))

    def run(
        self,
        job: str = JOB,
        *,
        config: dict[str, Any] | None = None,
        only: str | None = None,
        **execution: Any,
    ) -> dg.ExecuteInProcessResult:
        ops = {f"{JOB}_1__maintenance": {"config": config}} if config is not None else {}
        return (
            definitions(self.path, **execution)
            .resolve_job_def(job)
            .execute_in_process(
                instance=self.instance,
                run_config={"ops": ops},
                asset_selection=None if only is None else [dg.AssetKey([only, "maintenance"])],
                raise_on_error=False,
            )
        )

    @contextmanager
    def working_on(self, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Lets a run on a table wait at the end of its operation for the end of the block."""
        began, may_end, end = threading.Event(), threading.Event(), BudgetAccount.end

        def waits(account: BudgetAccount, *args: Any) -> None:
            if threading.current_thread() in threads:
                began.set()
                assert may_end.wait(60)
            end(account, *args)

        monkeypatch.setattr(BudgetAccount, "end", waits)
        threads = [threading.Thread(target=self.run, kwargs={"only": name})]
        threads[0].start()
        try:
            assert began.wait(60)
            yield
        finally:
            may_end.set()
            threads[0].join()

    def has_run(self) -> set[str]:
        """The tables with a newer checkpoint than the first one."""
        return {
            name
            for name in ("idle", "lively")
            if len([*(self.path / name / "_delta_log").glob("*.checkpoint.parquet")]) > 1
        }

    def facts(self, name: str) -> dict[str, Any]:
        """The metadata of the last materialization of a table."""
        event = self.instance.get_latest_materialization_event(dg.AssetKey([name, "maintenance"]))
        assert event is not None and event.asset_materialization is not None
        return {key: value.value for key, value in event.asset_materialization.metadata.items()}

    def log(self, run: dg.ExecuteInProcessResult) -> list[str]:
        return [entry.user_message for entry in self.instance.all_logs(run.run_id)]

    def rows(self) -> list[dict[str, Any]]:
        ledger = LedgerTable(open_store(str(self.path / "ledger")))
        rows: list[dict[str, Any]] = ledger.read(
            ("table_name", "operation", "outcome", "reason", "link")
        ).to_pylist()
        return rows

    def booked(self) -> list[str]:
        folder = self.path / "state/budget"
        return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def definitions(path: Path, *, per_step: int = 25, state: bool = True) -> dg.Definitions:
    policy = load_policy(path / "policy.yaml")
    return build_definitions(
        [
            DeltaTable(policy=table, key=dg.AssetKey([table.name]), among=policy)
            for table in policy.named_tables
        ],
        execution=Execution(
            tables_per_step=per_step,
            state=str(path / "state") if state else None,
            retry_policy=dg.RetryPolicy(max_retries=0),
        ),
    )


@pytest.fixture
def lake(tmp_path: Path, instance_with_pools: dg.DagsterInstance) -> Lake:
    return Lake(tmp_path, instance_with_pools)


def day(requests: int) -> dict[str, Any]:
    return {"day": {"requests": requests}}


# One step


def test_what_does_not_fit_waits_and_everything_says_why(lake: Lake) -> None:
    lake.write(day(lake.cost("lively")))
    run = lake.run()
    assert run.success
    assert lake.has_run() == {"lively"}
    facts = lake.facts("idle")
    assert facts["status"] == "deferred"
    (due,) = markdown_rows(facts["due"])
    assert due["status"] == "deferred"
    assert "but deferred until " in due["why"]
    assert "after 1 operation with more gain for their cost" in due["why"]
    assert any("/idle: checkpoint deferred: " in text for text in lake.log(run))
    checks = [
        check for check in run.get_asset_check_evaluations() if check.asset_key.path == ["idle"]
    ]
    protocol = next(check for check in checks if check.check_name == "protocol")
    assert protocol.passed
    assert "checkpoint: " in str(protocol.description) and "deferred until" in str(
        protocol.description
    )
    link = f"/runs/{run.run_id}"
    rows = {(row["table_name"], row["outcome"]): row for row in lake.rows()}
    assert rows.keys() == {("lively", "done"), ("idle", "deferred")}
    assert "after 1 operation with more gain" in rows["idle", "deferred"]["reason"]
    assert {row["link"] for row in rows.values()} == {link}


def test_a_step_delivers_its_choice_to_the_ledger_once(lake: Lake) -> None:
    lake.write(day(1))
    assert lake.run().success
    assert lake.has_run() == set()
    log = [*(lake.path / "ledger/_delta_log").glob("*.json")]
    assert [row["outcome"] for row in lake.rows()] == ["deferred", "deferred"]
    assert len(log) == 2, "one commit creates the ledger, one has the rows"


def test_a_change_of_the_table_that_waits_lets_no_check_warn(lake: Lake) -> None:
    rules = {"protocol": {"properties": {"delta.appendOnly": "true"}}}
    lake.write(day(1), idle=rules)
    run = lake.run()
    checks = [
        check for check in run.get_asset_check_evaluations() if check.check_name == "protocol"
    ]
    assert all(check.passed for check in checks)
    assert any("set-properties: " in str(check.description) for check in checks)


def test_the_account_of_a_day_counts_earlier_runs(lake: Lake) -> None:
    lake.write(day(lake.cost("lively")))
    assert lake.run(only="lively").success
    (entry,) = lake.booked()
    assert ".ended." in entry
    lake.write({"day": {"wall_time": "0.001 seconds"}})
    assert lake.run(only="idle").success
    assert lake.has_run() == {"lively"}
    (due,) = markdown_rows(lake.facts("idle")["due"])
    assert "the budget of wall time is spent" in due["why"]


def test_a_plan_shows_the_choice_and_books_and_records_nothing(lake: Lake) -> None:
    lake.write(day(lake.cost("lively")))
    run = lake.run(config={"plan_only": True})
    assert run.success
    assert any("/idle: checkpoint deferred: " in text for text in lake.log(run))
    assert any("/lively: checkpoint planned" in text for text in lake.log(run))
    assert lake.booked() == [] and lake.has_run() == set()
    assert "deferred" not in {row["outcome"] for row in lake.rows()}


def test_a_run_on_demand_is_not_subject_to_the_budget(lake: Lake) -> None:
    lake.write(day(1))
    (lake.path / "ledger").write_text("not a folder")
    run = lake.run(config={"operation": "checkpoint"})
    assert run.success
    assert not any(text.startswith("budget: ") for text in lake.log(run)), "nothing was chosen"
    assert lake.has_run() == {"idle", "lively"}
    assert lake.booked() == []


def test_approved_plans_are_not_subject_to_the_budget(lake: Lake) -> None:
    rules = {"defaults": {"checkpoint": {"max_commits": 5}, "approval": ["checkpoint"]}}
    lake.write(**rules)
    assert lake.run(only="idle").success
    (plan,) = markdown_rows(lake.facts("idle")["waiting"])
    lake.write(day(1), **rules)
    config = {"ops": {"run_approved_plans": {"config": {"plans": [plan["plan"]]}}}}
    job = definitions(lake.path).resolve_job_def(f"{JOB}_approve")
    assert job.execute_in_process(instance=lake.instance, run_config=config).success
    assert lake.has_run() == {"idle"}


def test_without_a_budget_nothing_changes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    within_budgets = budgets.within_budgets

    def watched(runs: Any) -> Any:
        limited = within_budgets(runs)
        seen.append([one is other for one, other in zip(runs, limited, strict=True)])
        return limited

    monkeypatch.setattr(budgets, "within_budgets", watched)
    lake.write()
    assert lake.run().success
    assert seen == [[True, True]]
    assert lake.has_run() == {"idle", "lively"}
    assert lake.booked() == []


def test_a_silent_table_holds_up_no_choice(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assess, has_ended, is_over = TableRun.assess, threading.Event(), threading.Event()

    def assess_or_wait(run: TableRun) -> TableRun:
        if run.table.policy.name != "idle":
            return assess(run)
        try:
            has_ended.wait()
            return assess(run)
        finally:
            is_over.set()

    monkeypatch.setattr(TableRun, "assess", assess_or_wait)
    monkeypatch.setattr(budgets, "_PATIENCE", 0.1)
    lake.write(day(1000))
    try:
        assert lake.run().success
    finally:
        has_ended.set()
        is_over.wait()
    assert lake.has_run() == {"idle", "lively"}


@pytest.mark.usefixtures("asks_for_files")
def test_nothing_runs_on_a_table_that_lost_files(lake: Lake) -> None:
    lake.write(day(1000))
    assert not lake.run().success
    assert lake.has_run() == {"idle"}, "only it has all of its files"


# Two steps


def test_the_steps_of_a_run_come_to_one_order_by_their_shared_folder(lake: Lake) -> None:
    lake.write(day(lake.cost("lively")))
    assert lake.run(f"{JOB}_health", per_step=1).success
    assert lake.run(per_step=1).success
    assert lake.has_run() == {"lively"}


def test_without_a_shared_folder_each_step_has_its_own_account_and_says_so(lake: Lake) -> None:
    lake.write(day(lake.cost("lively")))
    run = lake.run(per_step=1, state=False)
    assert lake.has_run() == {"idle", "lively"}
    assert len([text for text in lake.log(run) if "compares only its own tables" in text]) == 2


def test_what_waited_in_an_earlier_run_still_competes(lake: Lake) -> None:
    lake.write(day(1))
    assert lake.run(per_step=1).success
    lake.write(day(lake.cost("lively")))
    assert lake.run(per_step=1).success
    assert lake.has_run() == {"lively"}


def test_what_has_waited_for_too_long_comes_first(lake: Lake) -> None:
    lake.write(day(1))
    assert lake.run(per_step=1).success
    for file in (lake.path / "state").glob("*.json"):
        entry = json.loads(file.read_text())
        for operation in entry["assessment"]["operations"]:
            if entry["assessment"]["name"] == "idle":
                operation["due_since"] = "2026-01-01T00:00:00Z"
        file.write_text(json.dumps(entry))
    lake.write(day(lake.cost("lively")))
    assert lake.run(per_step=1).success
    assert lake.has_run() == {"idle"}


def test_the_limit_of_a_run_is_for_the_tables_of_the_run(lake: Lake) -> None:
    lake.write({"run": {"requests": lake.cost("lively")}})
    assert lake.run(f"{JOB}_health", per_step=1).success
    assert lake.run(only="idle", per_step=1).success
    assert lake.has_run() == {"idle"}


@pytest.mark.parametrize("days", [0, 3])
def test_tables_that_nothing_maintains_do_not_compete(
    lake: Lake, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write(day(lake.cost("lively")))
    assert lake.run(f"{JOB}_health", per_step=1).success
    monkeypatch.setattr(budgets, "_RECENT", budgets._RECENT if not days else -budgets._RECENT)
    assert lake.run(only="idle", per_step=1).success
    assert lake.has_run() == (set() if not days else {"idle"})


def test_a_folder_that_cannot_be_reached_is_said_and_fails_no_run(lake: Lake) -> None:
    lake.write(day(lake.cost("lively")))
    (lake.path / "state").write_text("no folder")
    run = lake.run()
    assert run.success
    assert lake.has_run() == {"lively"}
    assert any("compares only its own tables" in text for text in lake.log(run))


# Ledgers and other runs


def test_a_ledger_that_cannot_be_read_leaves_the_usual_order_and_says_so(lake: Lake) -> None:
    lake.write(day(lake.cost("idle")))
    (lake.path / "ledger").write_text("not a folder")
    run = lake.run(only="idle")
    assert run.success
    assert lake.has_run() == {"idle"}
    assert any("the usual order is used" in text for text in lake.log(run))
    # Nothing is left, whatever the order.
    lake.write({"day": {"wall_time": "0.001 seconds"}})
    assert lake.run(only="lively").success
    assert lake.has_run() == {"idle"}


def test_what_another_run_has_begun_is_booked(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write(day(lake.cost("lively")))
    with lake.working_on("lively", monkeypatch):
        assert lake.run(only="idle").success
    assert lake.has_run() == {"lively"}
    (due,) = markdown_rows(lake.facts("idle")["due"])
    assert "the budget of requests is spent" in due["why"]
    assert len(lake.booked()) == 1


def test_what_another_run_is_doing_is_counted_and_does_not_compete(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three times what is expected is reserved. If it competed as well, nothing would be left.
    lake.write(day(4 * lake.cost("lively") + lake.cost("idle") - 1))
    assert lake.run(f"{JOB}_health", per_step=1).success
    with lake.working_on("lively", monkeypatch):
        assert lake.run(only="idle", per_step=1).success
    assert lake.has_run() == {"idle", "lively"}


@pytest.mark.process
def test_the_booked_cost_of_a_killed_run_stays(lake: Lake, tmp_path: Path) -> None:
    lake.write(day(lake.cost("lively")))
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from delta_maintenance.policies.budget.account import BudgetAccount\n"
        "from delta_maintenance.protocol.delta_log.file_sample import FileSample\n"
        "from tests.dagster.runs.test_budgets import definitions\n"
        "FileSample.files = lambda _: []\n"
        "BudgetAccount.end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "job = definitions(Path(sys.argv[1])).resolve_job_def('delta_maintenance')\n"
        "job.execute_in_process()\n"
    )
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=300,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    (entry,) = lake.booked()
    assert ".begun.0_0" not in entry and ".begun." in entry
    assert lake.run(only="idle").success
    assert lake.has_run() == {"lively"}
    assert "the budget of requests is spent" in lake.facts("idle")["due"]
