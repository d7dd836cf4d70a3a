"""Rules that a policy takes from the properties of tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance import clock, open_table
from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs.catalog import CatalogTable
from delta_maintenance.cli.main import main
from delta_maintenance.policies import Assessment, RunEnvironment, RunResult, assess_table
from delta_maintenance.policies.approval import ApprovedPlan
from delta_maintenance.policies.assess import NewestSnapshots
from delta_maintenance.policies.budget.debt import due_work
from delta_maintenance.policies.budget.estimates import CostHistory
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.definition.rules import Rules, complete_rules
from delta_maintenance.policies.on_demand import run_plans
from delta_maintenance.policies.run import run
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.policy_tables import asked, assessed, run_on, statuses
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago

FROM: dict[str, Any] = {"from": "properties"}
AUTO_COMPACT = "delta.autoOptimize.autoCompact"
OPTIMIZE_WRITE = "delta.autoOptimize.optimizeWrite"
LEGACY = "delta.autoOptimize"
INTERVAL = "delta.checkpointInterval"
LOG = "delta.logRetentionDuration"
CLEAN_UP = "delta.enableExpiredLogCleanup"
FILES = "delta.deletedFileRetentionDuration"
NAMES = (AUTO_COMPACT, OPTIMIZE_WRITE, LEGACY, INTERVAL, LOG, CLEAN_UP, FILES)


def sources(configuration: Mapping[str, Any], **rules: Any) -> dict[str, str]:
    """The properties that add rules, by operation."""
    return given_sources(Rules(**FROM, **rules), configuration)


def given_sources(rules: Rules, configuration: Mapping[str, Any]) -> dict[str, str]:
    _, sources, problems = complete_rules(rules, configuration)
    assert not problems
    return {operation: name for operation, name in sources.items() if name is not None}


def of(assessment: Assessment) -> dict[str, str | None]:
    """The property behind the rule of each assessed operation."""
    return {operation.operation: operation.rule_from for operation in assessment.operations}


def dead_file(**configuration: str) -> Folder:
    """A table with a file that was removed 40 days ago, and one that was 3 days ago."""
    table = Folder(first=(protocol(), metadata(configuration=configuration)))
    table.log(add("dead"), add("recent"), add("live"))
    table.file("dead", "recent", "live")
    table.log(remove("dead", deletionTimestamp=days_ago(40)))
    table.log(remove("recent", deletionTimestamp=days_ago(3)), days=3)
    return table


def written(path: Path, commits: int, configuration: Mapping[str, str] | None = None) -> DeltaTable:
    """A table that deltalake has written, with one file for each commit."""
    for number in range(commits):
        rows = pa.table({"id": [number]})
        write_deltalake(path, rows, mode="append", configuration={**(configuration or {})})
    return DeltaTable(path)


def assessed_at(path: Path, policy_table: PolicyTable | None = None) -> Assessment:
    return assess_table(open_table(str(path)), policy_table or asked(**FROM), now=clock.now())


# what requests an operation


@pytest.mark.parametrize(
    ("configuration", "added"),
    [
        ({}, {}),
        ({"delta.appendOnly": "true", "delta.targetFileSize": "1mb", "owner": "me"}, {}),
        ({AUTO_COMPACT: "true"}, {"optimize": AUTO_COMPACT}),
        ({AUTO_COMPACT: "auto"}, {"optimize": AUTO_COMPACT}),
        ({AUTO_COMPACT: "Legacy"}, {"optimize": AUTO_COMPACT}),
        ({AUTO_COMPACT: "TRUE", OPTIMIZE_WRITE: "false"}, {"optimize": AUTO_COMPACT}),
        ({OPTIMIZE_WRITE: "true"}, {"optimize": OPTIMIZE_WRITE}),
        ({AUTO_COMPACT: "false", OPTIMIZE_WRITE: "true"}, {}),
        ({LEGACY: "true", AUTO_COMPACT: "false"}, {"optimize": LEGACY}),
        ({LEGACY: "false", OPTIMIZE_WRITE: "true"}, {"optimize": OPTIMIZE_WRITE}),
        ({LEGACY: "false"}, {}),
        ({INTERVAL: "7"}, {"checkpoint": INTERVAL}),
        ({LOG: "interval 30 days"}, {"clean-log": LOG}),
        ({CLEAN_UP: "true", LOG: "interval 30 days"}, {"clean-log": CLEAN_UP}),
        ({CLEAN_UP: "false", LOG: "interval 30 days"}, {}),
        ({FILES: "interval 1 week"}, {"vacuum": FILES}),
        ({FILES: "INTERVAL  2 Weeks 1 day"}, {"vacuum": FILES}),
        ({FILES: "0 seconds"}, {"vacuum": FILES}),
        ({FILES: None, INTERVAL: None, AUTO_COMPACT: None}, {}),
        # Other spellings of a name are other properties, which no engine heeds.
        ({name.upper(): "true" for name in NAMES} | {"Delta.checkpointInterval": "3"}, {}),
    ],
)
def test_properties_request_operations(
    configuration: Mapping[str, Any], added: dict[str, str]
) -> None:
    assert sources(configuration) == added


def test_the_interval_of_checkpoints_is_that_of_the_property() -> None:
    rules, _, _ = complete_rules(Rules(**FROM), {INTERVAL: "7"})
    assert rules.checkpoint.max_commits == 7 and rules.vacuum is None


def test_nothing_comes_from_properties_unless_the_policy_says_so() -> None:
    every = {AUTO_COMPACT: "true", INTERVAL: "7", CLEAN_UP: "true", FILES: "garbage"}
    for rules in (Rules(), Rules(**{"from": "policy"}), Rules(vacuum=True)):
        assert complete_rules(rules, every) == (rules, {}, ())


@pytest.mark.parametrize(
    ("name", "value", "operation", "valid"),
    [
        (AUTO_COMPACT, "sometimes", "optimize", "true or false"),
        (OPTIMIZE_WRITE, "1", "optimize", "true or false"),
        (OPTIMIZE_WRITE, "auto", "optimize", "true or false"),
        (LEGACY, "", "optimize", "true or false"),
        (INTERVAL, "0", "checkpoint", "an integer of at least 1"),
        (INTERVAL, "-5", "checkpoint", "an integer of at least 1"),
        (INTERVAL, "10.5", "checkpoint", "an integer of at least 1"),
        (CLEAN_UP, "yes", "clean-log", "true or false"),
        (LOG, "interval 1 month", "clean-log", "units from weeks to microseconds"),
        (FILES, "interval -1 days", "vacuum", "'interval 7 days'"),
        (FILES, "7", "vacuum", "'interval 7 days'"),
    ],
)
def test_a_value_that_cannot_be_read_is_a_warning(
    name: str, value: str, operation: str, valid: str
) -> None:
    table = Folder(first=(protocol(), metadata(configuration={name: value})))
    seen = assessed(table, **FROM)
    assert (seen.status, seen.operations) == ("nothing-due", ())
    (note,) = [note for note in seen.notes if note.startswith("no rule for ")]
    assert note.startswith(f"no rule for {operation} ")
    assert name in note and repr(value) in note and valid in note


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.text()
        | st.sampled_from(["true", "False", "auto", "interval 1 week", "-1 days", "0", "9" * 30])
        | st.integers().map(str)
        | st.builds("interval {} {}".format, st.integers(), st.sampled_from(["days", "months"])),
    )
)
def test_any_value_is_a_rule_a_warning_or_nothing(configuration: dict[str, str]) -> None:
    rules, sources, problems = complete_rules(Rules(**FROM), configuration)
    operations = {"optimize", "checkpoint", "clean-log", "vacuum"}
    added = {name for name in operations if getattr(rules, name.replace("-", "_")) is not None}
    assert added == {operation for operation, name in sources.items() if name is not None}
    assert {*filter(None, sources.values())} <= configuration.keys()
    failed = [problem.removeprefix("no rule for ").split()[0] for problem in problems]
    assert len({*failed}) == len(failed) and {*failed} <= operations - added
    assert all(len(problem) < 2_000 for problem in problems)
    asking = {name for name in operations if rules.needs_approval(name)}
    assert asking == {"clean-log", "vacuum"} & added
    assert Rules.model_validate(rules.model_dump(exclude_unset=True)) == rules


# precedence


@pytest.mark.parametrize("rule", [True, False, {"every": "3 days"}])
def test_the_policy_wins_over_a_property(rule: Any) -> None:
    of_policy = Rules(**FROM, vacuum=rule)
    rules, sources, _ = complete_rules(of_policy, {FILES: "interval 9 days", LOG: "1 day"})
    assert sources == {"clean-log": LOG}
    assert rules.vacuum == of_policy.vacuum
    assert not rules.needs_approval("vacuum"), "a rule of the policy is as it was"
    # What it does not take, it does not read.
    assert given_sources(of_policy, {FILES: "garbage"}) == {}


def test_the_key_is_merged_like_others() -> None:
    policy = Policy.from_json(
        {
            "version": 1,
            "defaults": {**FROM, "checkpoint": {"max_age": "1 day"}},
            "tables": [
                {"name": "a", "uri": "/lake/a"},
                {"name": "b", "uri": "/lake/b", "from": "policy"},
                {"name": "c", "uri": "/lake/c", "vacuum": False},
                {"name": "d", "uri": "/lake/d", "expire": _EXPIRE},
                {"name": "p", "pattern": "/other/*", "from": "policy"},
            ],
            "ledger": {"uri": "/ledger", "maintenance": FROM},
        }
    )
    every = {INTERVAL: "7", FILES: "9 days"}
    assert {t.name: {*given_sources(t.rules, every)} for t in policy.named_tables} == {
        "a": {"vacuum"},
        "b": set(),
        "c": set(),
        "d": set(),
    }
    assert not policy.table_at("/other/x").rules.reads_properties
    assert policy.table_at("/unnamed/x").rules.reads_properties
    ledger = policy.ledger_table
    assert ledger is not None and not given_sources(ledger.rules, every)


_EXPIRE = {"column": "day", "older_than": "30 days", "then": ["vacuum"]}


def test_the_tables_of_a_catalog_have_the_key() -> None:
    catalog = {"kind": "unity", "address": "https://lake", "catalog": "prod", **FROM}
    tables = [{"catalog": "lake.**"}, {"catalog": "lake.sales.lines", "from": "policy"}]
    policy = Policy.from_json({"version": 1, "catalogs": {"lake": catalog}, "tables": tables})

    def rules_of(name: str) -> Rules:
        names = CatalogName(CatalogKind.UNITY, ("prod", "sales", name))
        table = policy.table_in("lake", CatalogTable(name=names, location=f"s3://lake/{name}"))
        assert table is not None
        return table.rules

    assert given_sources(rules_of("orders"), {INTERVAL: "7"}) == {"checkpoint": INTERVAL}
    assert given_sources(rules_of("lines"), {INTERVAL: "7"}) == {}


# approvals


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        ({}, "needs-approval"),
        ({"approval": ["optimize"]}, "needs-approval"),
        ({"approval": ["vacuum"]}, "needs-approval"),
        ({"approval": []}, "done"),
        ({"vacuum": True}, "done"),
        ({"vacuum": True, "approval": ["vacuum"]}, "needs-approval"),
    ],
)
def test_a_deletion_that_a_property_requests_waits_for_an_approval(
    rules: dict[str, Any], status: str
) -> None:
    table = dead_file(**{FILES: "interval 1 hour"})
    policy_table = asked(**FROM, **rules)
    assert policy_table.rules.asks == (status == "needs-approval" or rules == {"vacuum": True})
    result = run_on(table, policy_table)
    assert statuses(result) == {"vacuum": status}
    assert ("dead" in table.files()) == (status == "needs-approval")
    (outcome,) = result.outcomes
    assert outcome.reason.startswith(f"by {FILES}: ") == ("vacuum" not in rules)
    assert "recent" in table.files(), "the property says less than a week"


def test_an_approved_plan_runs_although_its_rule_is_from_a_property() -> None:
    table, policy_table = dead_file(**{FILES: "interval 9 days"}), asked(**FROM)
    (shown,) = run_on(table, policy_table).outcomes
    environment = RunEnvironment(now=lambda: NOW)
    plans = [ApprovedPlan.of(shown)]
    result = run_plans(table.open(), policy_table, plans, environment=environment)
    assert statuses(result) == {"vacuum": "done"} and table.files() == {"live", "recent"}
    assert result.after is not None and of(result.after) == {"vacuum": FILES}


def test_old_history_waits_for_an_approval_too() -> None:
    table = Folder(first=(protocol(), metadata(configuration={CLEAN_UP: "true"})))
    for _ in range(3):
        table.log(add("a"))
    table.checkpoint(3)
    table.log(add("b"), days=1)
    assert statuses(run_on(table, asked(**FROM))) == {"clean-log": "needs-approval"}
    assert statuses(run_on(table, asked(**FROM, approval=[]))) == {"clean-log": "done"}


def test_an_operation_that_deletes_nothing_needs_no_approval() -> None:
    table = Folder(first=(protocol(), metadata(configuration={INTERVAL: "2"})))
    table.log(add("a"))
    table.log(add("b"))
    assert statuses(run_on(table, asked(**FROM))) == {"checkpoint": "done"}


def test_a_budget_knows_how_often_a_rule_from_a_property_is_due() -> None:
    configuration = {FILES: "9 days", INTERVAL: "1", AUTO_COMPACT: "true"}
    seen, table = assessed(dead_file(**configuration), **FROM), asked(**FROM)
    expected = CostHistory()
    days = {
        due.operation: due_work(seen, due, table, expected.expected("t", due)).interval.days
        for due in seen.due
    }
    assert days == {"vacuum": 7, "checkpoint": 1}


# tables of other writers


def test_a_table_of_deltalake_is_maintained_by_its_properties(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = written(path, 13, {AUTO_COMPACT: "auto", FILES: "interval 2 weeks"})
    table.alter.set_table_properties({INTERVAL: "5"})
    assert of(assessed_at(path)) == {
        "optimize": AUTO_COMPACT,
        "checkpoint": INTERVAL,
        "vacuum": FILES,
    }
    result: RunResult = run(open_table(str(path)), asked(**FROM))
    assert statuses(result) == {"optimize": "done", "checkpoint": "done", "vacuum": "nothing-to-do"}
    table = DeltaTable(path)
    assert len(table.file_uris()) == 1 and table.to_pyarrow_table()["id"].to_pylist() == [
        *range(13)
    ]
    again = run(open_table(str(path)), asked(**FROM), last_runs=result.last_runs)
    assert (again.status, again.outcomes) == ("nothing-due", ())


def test_a_property_that_is_removed_requests_nothing(tmp_path: Path) -> None:
    table = Folder(first=(protocol(), metadata(configuration={INTERVAL: "1"})))
    table.log(add("a"))
    snapshots = NewestSnapshots(table.open())

    def seen() -> dict[str, str | None]:
        return of(assess_table(snapshots.table, asked(**FROM), now=NOW, snapshots=snapshots))

    assert seen() == {"checkpoint": INTERVAL}
    table.log(metadata(configuration={FILES: "9 days"}))
    assert seen() == {"vacuum": FILES}
    table.log(metadata())
    assert seen() == {}


def test_real_tables_have_the_rules_of_their_properties(corpus: Path) -> None:
    interval = assessed_at(corpus / "dat-with_checkpoint")
    assert of(interval) == {"checkpoint": INTERVAL}
    (checkpoint,) = interval.operations
    assert checkpoint.reason.startswith(f"by {INTERVAL}: ")


def test_a_table_that_cannot_be_opened_fails_as_before(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("{")
    failed = assessed_at(tmp_path)
    assert (failed.status, failed.exit_status, failed.operations) == ("failed", 5, ())


# the command line


def test_the_verbs_show_which_property_has_added_a_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "t", 2, {INTERVAL: "1000", FILES: "interval 2 weeks"})
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefaults: {from: properties}\n"
        f"tables: [{{name: t, uri: {tmp_path}/t}}, {{name: u, uri: {tmp_path}/u, from: policy}}]\n"
    )
    state = ["--state", str(tmp_path / "state")]

    def shown(*words: str) -> str:
        main([words[0], str(policy), *words[1:]])
        return capsys.readouterr().out

    def lines(*words: str) -> str:
        return " ".join(shown(*words).split())

    assert f"rules {tmp_path}/t, properties of the table u" in lines("tables", *state)
    document = json.loads(shown("tables", "--json"))["tables"]
    assert [table["rules_from_properties"] for table in document] == [None, {}]
    assert f"by {FILES}: " in lines("assess", "--reasons", *state, "--table", "t")
    added = {"checkpoint": INTERVAL, "vacuum": FILES}
    document = json.loads(shown("tables", "--json", *state))["tables"]
    assert [table["rules_from_properties"] for table in document] == [added, {}]
    assert document[0]["rules"]["from"] == "properties"
    added_text = f"checkpoint by {INTERVAL}, vacuum by {FILES}"
    assert f"rules {tmp_path}/t, {added_text} u at" in lines("tables", *state)
    for file in (tmp_path / "t" / "_delta_log").glob("*.json"):
        file.write_text("{")
    shown("assess", *state)
    document = json.loads(shown("tables", "--json", *state))["tables"]
    assert [table["rules_from_properties"] for table in document] == [None, {}], "not known now"
