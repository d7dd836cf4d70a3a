"""`assess` and `run` over the tables of a policy, and `health` of one table."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.errors import StorageAccessError
from delta_maintenance.operations.core import policy_operations
from delta_maintenance.operations.health import TableHealth
from delta_maintenance.policies import Assessment, AssessmentEntry, AssessmentStore, RunResult
from delta_maintenance.policies import assess as assess_module
from delta_maintenance.policies import run as run_module
from tests.support.tables.actions import add, commit_info, remove
from tests.support.tables.vacuum_tables import Folder, days_ago


def neglected(path: Path) -> Folder:
    """A table on disk with four commits after its checkpoint and one unreferenced file."""
    now = datetime.now(UTC)
    table = Folder(path, now=now)
    table.checkpoint(0)
    for number in range(4):
        table.log(commit_info("WRITE"), add(f"{number}.parquet", size=1))
        table.file(f"{number}.parquet")
    removed = {"deletionTimestamp": days_ago(40, now), "size": 1, "extendedFileMetadata": True}
    table.log(remove("0.parquet", **removed))
    return table


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two neglected tables, and one that is damaged."""
    neglected(tmp_path / "lake" / "orders")
    neglected(tmp_path / "lake" / "raw" / "events")
    damaged = tmp_path / "lake" / "damaged" / "_delta_log"
    damaged.mkdir(parents=True)
    (damaged / f"{0:020d}.json").write_text("{")
    return tmp_path / "lake"


@pytest.fixture
def config(lake: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy over them."""
    monkeypatch.setenv("LAKE", str(lake))
    path = lake.parent / "policy.yaml"
    path.write_text(
        """
version: 1
defaults: {checkpoint: {max_commits: 5}, vacuum: true, approval: [vacuum]}
tables:
- {name: orders, uri: "${env:LAKE}/orders"}
- {pattern: "${env:LAKE}/**"}
"""
    )
    return path


def test_assess_reports_every_table_despite_a_damaged_one(cli: Any, config: Path) -> None:
    outcome = cli("assess", config, "--json")
    assessments = [Assessment.from_json(value) for value in outcome.document]
    assert [(each.name, each.status) for each in assessments] == [
        ("orders", "due"),
        ("damaged", "failed"),
        ("raw/events", "due"),
    ]
    assert outcome.status == 5 and outcome.err.startswith("delta-maintenance: damaged: table ")
    text = cli("assess", config)
    assert "needs approval" in text.out and "5 → 0 log files to replay" in text.out
    assert "1 file, 1 B" in text.out and text.status == 5


def test_assess_of_named_tables_opens_no_other(cli: Any, config: Path, lake: Path) -> None:
    outcome = cli("assess", config, "--table", "raw/events", "--table", "orders", "--json")
    assert outcome.status == 0 and outcome.err == ""
    assert [value["name"] for value in outcome.document] == ["raw/events", "orders"]
    config.write_text(config.read_text().replace("/**", "/**/none"))
    named = cli("assess", config, "--table", "orders", "--json")
    assert named.status == 0 and named.err == "", "nothing has to be discovered for it"


def test_a_table_that_the_policy_does_not_have_is_wrong_usage(cli: Any, config: Path) -> None:
    outcome = cli("run", config, "--table", "order")
    assert outcome.status == 2 and outcome.out == ""
    assert "no table named 'order'" in outcome.err and outcome.err.count("\n") == 1


def test_a_policy_with_a_mistake_is_wrong_usage(cli: Any, config: Path) -> None:
    config.write_text("version: 1\ndefaults: {vaccum: true}\n")
    outcome = cli("assess", config)
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert f"file {config}: line 2: defaults.vaccum" in outcome.err


def test_a_pattern_that_cannot_be_listed_is_a_row_of_its_own(
    cli: Any, config: Path, lake: Path, tmp_path: Path
) -> None:
    # By default, vacuums wait for tables that may be clones.
    ignoring = "vacuum: true, clones: {unreadable: ignore}"
    mended = config.read_text().replace("vacuum: true", ignoring)
    broken = f"- {{pattern: '{lake}/other/**', storage: {{connection: nobody}}}}\n"
    config.write_text(mended.replace("/**", "/raw/**") + broken)
    state = AssessmentStore(str(tmp_path / "state"))
    assessed = cli("assess", config, "--state", state.uri, "--json")
    rows = {each["name"]: each for each in assessed.document}
    assert rows["orders"]["status"] == rows["events"]["status"] == "due"
    failed = rows[f"{lake}/other/**"]
    assert (failed["subject"], failed["status"], failed["exit_status"]) == ("pattern", "failed", 2)
    assert assessed.status == 2 and "only an orchestrator can resolve" in assessed.err
    since = state.load(f"{lake}/other/**")
    assert isinstance(since, AssessmentEntry) and since.failing_since is not None

    ran = cli("run", config, "--state", state.uri, "--json")
    assert [(each["name"], each["status"]) for each in ran.document] == [
        ("orders", "done"),
        ("events", "done"),
        (f"{lake}/other/**", "failed"),
    ]
    assert ran.status == 2
    still = state.load(f"{lake}/other/**")
    assert isinstance(still, AssessmentEntry) and still.failing_since == since.failing_since

    missing = cli("run", config, "--table", "lost")
    assert missing.status == 2 and "only an orchestrator can resolve" in missing.err

    config.write_text(mended.replace("/**", "/raw/**") + broken.replace(", storage", "}#"))
    assert cli("assess", config, "--state", state.uri).status == 0
    assert state.load(f"{lake}/other/**") is None


def test_run_continues_after_a_failed_table(cli: Any, config: Path, lake: Path) -> None:
    outcome = cli("run", config, "--json")
    results = [RunResult.from_json(value) for value in outcome.document]
    assert [(each.name, each.status) for each in results] == [
        ("orders", "done"),
        ("damaged", "failed"),
        ("raw/events", "done"),
    ]
    assert outcome.status == 5
    for table in ("orders", "raw/events"):
        log = lake / table / "_delta_log"
        assert (log / f"{5:020d}.checkpoint.parquet").exists()
        assert (lake / table / "0.parquet").exists(), "nobody approved the vacuum"


def test_run_with_an_approval_and_a_state_leaves_nothing_due(
    cli: Any, config: Path, lake: Path, tmp_path: Path
) -> None:
    words = (config, "--state", tmp_path / "state", "--table", "orders")
    text = cli("run", *words, "--approve", "vacuum")
    assert text.status == 0 and "vacuum" in text.out and "done" in text.out
    assert not (lake / "orders" / "0.parquet").exists()
    seen = cli("assess", *words)
    assert seen.status == 0 and "nothing to do" in seen.out
    again = cli("run", *words, "--approve", "vacuum", "--json").document[0]
    assert again["status"] == "nothing-due" and len(again["last_runs"]) == 2


def test_only_the_state_remembers_a_vacuum_without_a_commit(
    cli: Any, config: Path, lake: Path, tmp_path: Path
) -> None:
    config.write_text(
        "version: 1\ndefaults: {vacuum: {log_commits: false}}\n"
        'tables: [{name: orders, uri: "${env:LAKE}/orders"}]\n'
    )
    state = ("--state", tmp_path / "state")
    assert cli("run", config, *state, "--json").document[0]["status"] == "done"
    assert cli("assess", config, *state, "--json").document[0]["status"] == "nothing-due"
    assert cli("assess", config, "--json").document[0]["status"] == "due"


def test_a_dry_run_prints_the_plans_and_changes_nothing(
    cli: Any, config: Path, lake: Path, tmp_path: Path
) -> None:
    before = sorted(os.listdir(lake / "orders" / "_delta_log"))
    words = ("run", config, "--table", "orders", "--dry-run", "--state", tmp_path / "state")
    result = RunResult.from_json(cli(*words, "--json").document[0])
    assert result.status == "planned"
    assert [(o.operation, o.status) for o in result.outcomes] == [
        ("checkpoint", "planned"),
        ("vacuum", "planned"),
    ]
    plan = result.outcomes[1].result
    assert plan is not None and plan["files"] == 1
    assert "planned" in cli(*words).out
    assert sorted(os.listdir(lake / "orders" / "_delta_log")) == before
    assert not (tmp_path / "state").exists() or not os.listdir(tmp_path / "state")


def test_a_limit_that_stops_a_table_is_status_3(cli: Any, config: Path) -> None:
    text = config.read_text()
    config.write_text(text.replace("approval: [vacuum]", "limits: {max_deleted_files: 0}"))
    outcome = cli("run", config, "--table", "orders")
    assert outcome.status == 3 and "stopped" in outcome.out
    assert "1 file would be deleted, and 0 are allowed" in outcome.err


def test_tables_that_fail_in_different_ways_are_status_1(cli: Any, config: Path) -> None:
    text = config.read_text()
    config.write_text(text.replace("approval: [vacuum]", "limits: {max_deleted_files: 0}"))
    assert cli("run", config).status == 1


@pytest.mark.parametrize("verb", ["assess", "run"])
def test_a_defect_on_one_table_does_not_stop_the_others(
    cli: Any, config: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def broken(table: Any, *rest: Any, **options: Any) -> Any:
        if table.uri.endswith("orders"):
            raise ZeroDivisionError("by nothing")
        return real(table, *rest, **options)

    module = {"assess": assess_module, "run": run_module}[verb]
    real = module.assess_table
    monkeypatch.setattr(module, "assess_table", broken)
    outcome = cli(verb, config, "--table", "orders", "--table", "raw/events", "--json")
    statuses = [value["status"] for value in outcome.document]
    assert outcome.status == 1 and statuses[0] == "failed" != statuses[1]
    assert "orders: table" in outcome.err and "ZeroDivisionError: by nothing" in outcome.err


def test_a_state_that_cannot_be_kept_is_a_warning(
    cli: Any, config: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise StorageAccessError("not allowed", remedy="ask")

    monkeypatch.setattr(AssessmentStore, "save", refused)
    words = ("--table", "orders", "--state", lake.parent / "state")
    outcome = cli("run", config, *words, "--json")
    assert outcome.status == 0 and outcome.document[0]["status"] == "done"
    assert "warning: orders: the outcome cannot be stored: not allowed" in outcome.err


def test_a_connection_needs_an_orchestrator_or_storage_options(cli: Any, config: Path) -> None:
    text = config.read_text().replace("approval: [vacuum]", "storage: {connection: lake}")
    config.write_text(text.replace('- {pattern: "${env:LAKE}/**"}', ""))
    outcome = cli("assess", config)
    assert outcome.status == 2 and "connection 'lake'" in outcome.err
    given = cli("assess", config, "--storage-option", "AWS_REGION=x")
    assert "no storage option 'AWS_REGION'" in given.err, "it went to the store, which has none"


def test_every_operation_of_a_policy_can_be_approved_and_no_other(cli: Any, config: Path) -> None:
    names = [record.name for record in policy_operations()]
    approvals = [word for name in names for word in ("--approve", name)]
    assert cli("run", config, *approvals, "--dry-run").status != 2
    assert cli("run", config, "--approve", "drop-feature", "--dry-run").status == 2


def test_health_for_people_and_as_json(cli: Any, lake: Path) -> None:
    outcome = cli("health", lake / "orders")
    assert outcome.status == 0
    for words in (
        "5 commits",
        "version 0: classic",
        "3 below",
        "1, of them 1 expired",
        "unsupported",
    ):
        assert words in outcome.out, words
    health = TableHealth.from_json(cli("health", lake / "orders", "--json").document)
    assert (health.version, health.num_files, health.reclaimable_bytes) == (5, 3, 1)


def test_health_of_a_missing_table_is_status_5(cli: Any, tmp_path: Path) -> None:
    outcome = cli("health", tmp_path)
    assert outcome.status == 5 and outcome.out == "" and outcome.err.count("\n") == 1


def test_a_table_is_known_by_its_name_and_by_every_form_of_its_address(
    cli: Any, config: Path, lake: Path, tmp_path: Path
) -> None:
    words = (config, "--state", tmp_path / "state", "--json")
    for text in ("raw/events", f"file://{lake}/raw/events/", f"{lake}/raw/events"):
        outcome = cli("run", *words, "--table", text)
        assert [each["name"] for each in outcome.document] == ["raw/events"], text
    cli("run", "--all-due", f"{lake}/raw/events/", *words[1:])
    (entry,) = AssessmentStore(str(tmp_path / "state")).load_all()
    assert isinstance(entry, AssessmentEntry)
    assert [each.operation for each in entry.last_runs].count("checkpoint") == 1
    absent = cli("run", *words, "--table", f"{lake}/other")
    assert "no table named" in absent.err


def test_all_mistakes_of_a_policy_are_told_at_once_with_the_keys_that_were_meant(
    cli: Any, config: Path
) -> None:
    config.write_text(
        "version: 1\n"
        "defaults: {approval: [vacum]}\n"
        "tables:\n"
        "- {name: a, url: s3://lake/a}\n"
        "- {name: b, uri: s3://lake/b, fsck: {every: 7 dayz}}\n"
    )
    outcome = cli("assess", config)
    assert (outcome.status, outcome.out) == (2, "")
    first, second, third = outcome.err.splitlines()
    prefix = f"delta-maintenance: file {config}: line"
    assert first.startswith(
        f"{prefix} 2: defaults.approval[0]: unknown value; did you mean vacuum?"
    )
    assert first.endswith("(and 2 more)")
    assert second.startswith(
        f"{prefix} 4: tables[0].url: unknown key; did you mean uri? Valid keys: "
    )
    assert " pattern, " in second
    assert third.startswith(f"{prefix} 5: tables[1].fsck.every: '7 dayz' is not a duration")
