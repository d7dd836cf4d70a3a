"""`checkpoint`: options in, Plan or Result out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

from delta_maintenance.operations.checkpoint import (
    CheckpointKind,
    CheckpointOptions,
    CheckpointPlan,
    CheckpointResult,
    Engine,
)
from tests.support.tables.table_builder import TableBuilder


def test_choices_and_defaults_are_those_of_the_operation(cli: Any) -> None:
    said = " ".join(cli("checkpoint", "--help-all").out.split())
    assert f"{{{','.join(get_args(CheckpointKind))}}}" in said
    assert f"{{{','.join(get_args(Engine))}}}" in said
    assert f"by default {CheckpointOptions().actions_per_sidecar}" in said


def test_a_dry_run_prints_the_plan_and_writes_nothing(cli: Any, builder: TableBuilder) -> None:
    before = builder.names()
    outcome = cli("checkpoint", builder.store.root, "--dry-run", "--json")
    assert outcome.status == 0 and outcome.err == ""
    plan = CheckpointPlan.from_json(outcome.document)
    assert (plan.version, plan.kind, plan.engine) == (2, "classic", "local")
    assert set(outcome.document) == {field.name for field in fields(CheckpointPlan)}
    assert builder.names() == before


def test_a_run_prints_the_result_and_the_table_opens_from_it(
    cli: Any, builder: TableBuilder
) -> None:
    outcome = cli("checkpoint", builder.store.root, "--json")
    assert outcome.status == 0 and outcome.err == ""
    result = CheckpointResult.from_json(outcome.document)
    assert (result.version, result.status, result.num_files) == (2, "written", 3)
    assert result.path == "_delta_log/00000000000000000002.checkpoint.parquet"
    log = cli("inspect", builder.store.root, "--json").document["log"]
    assert log["checkpoint"]["version"] == 2 and log["commits_since_checkpoint"] == 0


def test_nothing_to_do_is_success(cli: Any, table: str) -> None:
    assert cli("checkpoint", table).status == 0
    outcome = cli("checkpoint", table, "--json")
    assert (outcome.status, outcome.document["status"]) == (0, "nothing-to-do")


def test_the_options_reach_the_operation(cli: Any, v2_table: str) -> None:
    outcome = cli(
        "checkpoint",
        v2_table,
        *("--kind", "v2-json", "--actions-per-sidecar", 3, "--time-zone", "Europe/Paris"),
        *("--engine", "local", "--dry-run", "--json"),
    )
    plan = CheckpointPlan.from_json(outcome.document)
    assert (plan.kind, plan.actions_per_sidecar, plan.time_zone) == ("v2-json", 3, "Europe/Paris")


def test_sidecars_contain_the_requested_number_of_actions(cli: Any, v2_table: str) -> None:
    words = ("checkpoint", v2_table, "--kind", "v2-parquet", "--actions-per-sidecar", 2, "--json")
    result = CheckpointResult.from_json(cli(*words).document)
    assert (result.kind, result.sidecars, result.num_files) == ("v2-parquet", 2, 4)


def test_an_older_version_can_be_written(cli: Any, table: str) -> None:
    outcome = cli("checkpoint", table, "--version", 1, "--json")
    assert (outcome.document["version"], outcome.document["num_files"]) == (1, 2)


def test_a_table_that_does_not_allow_the_kind_is_refused_untouched(
    cli: Any, builder: TableBuilder
) -> None:
    before = builder.names()
    outcome = cli("checkpoint", builder.store.root, "--kind", "v2-json")
    assert (outcome.status, outcome.out) == (3, "")
    assert "v2Checkpoint" in outcome.err
    assert builder.names() == before


def test_the_text_output_omits_empty_facts(cli: Any, table: str) -> None:
    plan = cli("checkpoint", table, "--dry-run").out
    assert "dry run" in plan and "3 commits since the last checkpoint" in plan
    written = cli("checkpoint", table).out
    assert "written" in written and "expired ones" not in written
