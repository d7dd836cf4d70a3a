"""What a policy and its callers do after an operation has reported corruption."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from delta_maintenance.cli.starter_policy import POLICY
from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations.checkpoint import operation
from delta_maintenance.operations.core import policy_operations
from delta_maintenance.policies import LastRun, RunResult
from delta_maintenance.policies.on_demand import run_operation
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.policy_tables import asked, neglected, run_on
from tests.support.tables.vacuum_tables import Folder

DEFAULTS = {
    key: value
    for key, value in yaml.safe_load(POLICY)["defaults"].items()
    if key not in ("approval", "limits")
}
WRITING = [
    record.name
    for record in policy_operations()
    if not record.effects.only_reads and not record.runs_on_corrupt
]


def statuses(result: RunResult) -> dict[str, str]:
    return {outcome.operation: outcome.status for outcome in result.outcomes}


def wrong(table: Folder) -> None:
    """Writes a checkpoint of the newest version that lacks a live file."""
    state = [a for a in table.state() if a.get("add", {}).get("path") != "5.parquet"]
    table.checkpoint(actions=state)


@pytest.mark.parametrize("plan_only", [False, True])
def test_the_default_policy_looks_for_corruption_before_it_changes_anything(
    plan_only: bool,
) -> None:
    table = neglected()
    wrong(table)
    before = table.names(), table.files()

    result = run_on(table, asked(**DEFAULTS), plan_only=plan_only)

    assert statuses(result) == {"fsck": "planned" if plan_only else "failed"}
    assert (table.names(), table.files()) == before
    reason = result.outcomes[0].reason
    assert "checkpoint-differs" in reason and "run fsck --repair" in reason
    assert "\n" not in reason


def test_a_table_is_held_back_until_fsck_finds_no_corruption() -> None:
    table = neglected()
    wrong(table)
    # The check needs an approval, so that it does not end the run itself.
    rules = asked(**DEFAULTS, approval=["fsck"])
    found = run_operation(table.open(), rules, "fsck")
    assert (found.status, found.exit_status) == ("failed", 5)
    last_runs = [LastRun.from_json(json.loads(json.dumps(r.to_json()))) for r in found.last_runs]
    before = table.names(), table.files()

    held = run_on(table, rules, last_runs=last_runs)

    assert statuses(held) == {"fsck": "failed"}, "a check that changes nothing needs no approval"
    assert held.after is not None
    assert [each.operation for each in held.after.due] == ["fsck"]
    blocked = [each for each in held.after.operations if each.status == "blocked"]
    assert {"clean-log", "vacuum"} <= {each.operation for each in blocked}
    # The plans of optimize and compact-log find it themselves.
    own = [each for each in blocked if "the log contradicts this version" in each.reason]
    assert {"clean-log", "vacuum"}.isdisjoint(each.operation for each in own)
    for each in blocked:
        reported = "fsck reported corruption: 1 finding" in each.reason
        assert (reported and "run fsck --repair" in each.reason) or "; run fsck, and" in each.reason
    assert (table.names(), table.files()) == before

    repaired = run_operation(
        table.open(), rules, "fsck", options={"repair": True}, last_runs=held.last_runs
    )
    assert repaired.status == "done"
    done = run_on(table, asked(vacuum=True), last_runs=repaired.last_runs)
    assert statuses(done) == {"vacuum": "done"}


def test_an_assessment_announces_no_change_of_a_version_that_its_log_contradicts() -> None:
    table = neglected()
    wrong(table)
    assessed = run_on(table, asked(**DEFAULTS, approval=["fsck"]), plan_only=True).before
    assert assessed is not None
    statuses = {each.operation: each.status for each in assessed.operations}
    assert statuses["fsck"] == "due"
    assert (statuses["clean-log"], statuses["vacuum"]) == ("blocked", "blocked")


@pytest.mark.parametrize("name", WRITING)
def test_no_caller_writes_to_a_table_that_is_held_back(name: str) -> None:
    table = neglected()
    wrong(table)
    found = run_operation(table.open(), asked(), "fsck")
    before = table.names(), table.files()

    result = run_operation(table.open(), asked(), name, last_runs=found.last_runs)

    assert (result.status, result.exit_status) == ("failed", 3)
    assert "fsck reported corruption" in str(result.problem)
    assert (table.names(), table.files()) == before


def test_corruption_that_another_operation_reports_holds_back_and_asks_for_fsck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def corrupt(*_: Any, **__: Any) -> Any:
        raise CorruptTableError("the sidecar contradicts its tags", remedy="run fsck")

    table = neglected()
    rules = {"checkpoint": {"max_commits": 1}, "clean_log": True, "vacuum": True}
    with monkeypatch.context() as patch:
        patch.setattr(operation, "apply", corrupt)
        first = run_on(table, asked(fsck=True, **rules))
    assert statuses(first) == {"fsck": "done", "checkpoint": "failed"}
    before = table.names(), table.files()

    without = run_on(table, asked(**rules), last_runs=first.last_runs)
    assert (without.status, without.outcomes) == ("blocked", ())
    assert (table.names(), table.files()) == before
    held = without.before.operations[0].reason if without.before is not None else ""
    assert "checkpoint reported corruption" in held and "contradicts its tags" in held

    again = run_on(table, asked(fsck=True, **rules), last_runs=first.last_runs)
    assert statuses(again)["fsck"] == "done", "although the last check is recent"
    assert statuses(again)["vacuum"] == "done"


def test_what_was_reported_of_another_table_at_the_address_holds_nothing_back() -> None:
    table = neglected()
    wrong(table)
    found = run_operation(table.open(), asked(), "fsck")
    other = Folder(first=(protocol(), metadata(id="another")))
    other.log(add("a.parquet"))
    other.file("a.parquet")

    result = run_operation(other.open(), asked(), "checkpoint", last_runs=found.last_runs)

    assert (result.status, result.problem) == ("done", None)
