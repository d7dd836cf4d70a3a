"""The health checks of a table, by themselves and with thresholds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg
import pytest

from delta_maintenance.policies import Assessment, assess_table
from delta_maintenance.policies.definition import Policy
from delta_maintenance_dagster import DeltaTable, HealthThresholds, health_checks
from delta_maintenance_dagster.health_checks import check_specs, judge
from tests.support.tables.actions import add, deletion_vector, features, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

Load = Callable[..., dg.Definitions]
NOW = datetime(2026, 11, 21, tzinfo=UTC)
KEY = dg.AssetKey(["lake", "events"])


def judged(
    table: TableBuilder, rules: dict[str, Any] | None = None, **thresholds: Any
) -> dict[str, bool]:
    """Which checks pass."""
    policy = Policy.model_validate(
        {"version": 1, "tables": [{"uri": table.store.root, **(rules or {})}]}
    )
    (named,) = policy.named_tables
    assessment = assess_table(table.open(), named, now=NOW)
    delta_table = DeltaTable(policy=named, key=KEY)
    found = judge(assessment, delta_table, HealthThresholds(**thresholds), approval={})
    return {judgement.name: judgement.passed for judgement in found}


def test_a_healthy_table_passes(table: TableBuilder) -> None:
    table.checkpoint()
    assert judged(table, min_log_retention_days=1) == {
        "checkpoint_lag": True,
        "log_length": True,
        "small_files": True,
        "reclaimable_bytes": True,
        "deletion_vector_share": True,
        "retention_settings": True,
        "protocol": True,
        "approvals": True,
    }


def test_the_policy_sets_how_far_behind_a_checkpoint_may_be(table: TableBuilder) -> None:
    assert judged(table)["checkpoint_lag"]
    assert not judged(table, max_commits_since_checkpoint=9)["checkpoint_lag"]
    rules = {"checkpoint": {"max_commits": 9}}
    assert not judged(table, rules, max_commits_since_checkpoint=500)["checkpoint_lag"]
    rules = {"checkpoint": {"max_commits": 10}}
    assert judged(table, rules, max_commits_since_checkpoint=1)["checkpoint_lag"]


def test_an_old_log_warns(table: TableBuilder) -> None:
    table.checkpoint()
    table.commit([add("new.parquet")])
    assert judged(table)["log_length"]
    assert not judged(table, max_expired_log_files=3)["log_length"]


def test_small_files_warn_where_there_are_many_files(table: TableBuilder) -> None:
    assert judged(table)["small_files"]
    table.commit([add(f"more-{number}.parquet") for number in range(100)])
    assert not judged(table)["small_files"]
    table.commit([add(f"large-{number}.parquet", size=1 << 30) for number in range(200)])
    assert judged(table)["small_files"]


def test_reclaimable_bytes_warn(table: TableBuilder) -> None:
    table.commit([remove("0.parquet", size=5_000, extendedFileMetadata=True, partitionValues={})])
    assert judged(table)["reclaimable_bytes"]
    assert not judged(table, max_reclaimable_bytes=4_999)["reclaimable_bytes"]
    rules = {"vacuum": {"min_reclaimable": "1 KB"}}
    assert not judged(table, rules)["reclaimable_bytes"]


def test_many_deletion_vectors_warn(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "vectors")
    table.commit([features("deletionVectors"), metadata()])
    vector = deletion_vector()
    table.commit(
        [add(f"{number}.parquet", dv=vector if number % 2 else None) for number in range(120)]
    )
    assert not judged(table)["deletion_vector_share"]
    assert judged(table, max_deletion_vector_share=0.5)["deletion_vector_share"]


@pytest.mark.parametrize(
    "name", ["delta.logRetentionDuration", "delta.deletedFileRetentionDuration"]
)
def test_a_short_retention_warns(table: TableBuilder, name: str) -> None:
    assert judged(table)["retention_settings"]
    table.commit([metadata(configuration={name: "interval 2 days"})])
    assert not judged(table)["retention_settings"]


def test_a_protocol_that_differs_from_the_policy_warns(table: TableBuilder) -> None:
    assert judged(table)["protocol"]
    rules = {"protocol": {"features": ["deletionVectors"]}}
    assert not judged(table, rules)["protocol"]
    assert not judged(table, {"row_tracking": True})["protocol"]


def test_waiting_for_the_hours_is_not_a_protocol_mismatch(table: TableBuilder) -> None:
    tomorrow = (NOW + timedelta(days=1)).strftime("%a")
    rules = {"checkpoint": {"max_commits": 2}, "hours": {"windows": [f"{tomorrow} 00:00-24:00"]}}
    assert judged(table, rules)["protocol"]


def test_every_check_fails_if_the_table_could_not_be_assessed() -> None:
    failed = Assessment(name="a", uri="a", assessed_at=NOW, status="failed", problem="not there")
    (named,) = Policy.model_validate({"version": 1, "tables": [{"uri": "/a"}]}).named_tables
    delta_table = DeltaTable(policy=named, key=KEY)
    found = list(judge(failed, delta_table, HealthThresholds(), approval={}))
    assert [each.name for each in found] == [spec.name for spec in check_specs(delta_table.key)]
    assert {(each.passed, each.message) for each in found} == {(False, "not there")}


def test_checks_run_by_themselves_and_change_nothing(
    table: TableBuilder, load: Load, instance: dg.DagsterInstance
) -> None:
    before = table.names()
    uri = table.store.root
    definitions = load(
        tables=[{"uri": uri, "key": "lake/events", "checkpoint": {"max_commits": 5}}]
    )
    job = definitions.resolve_job_def("delta_maintenance_health")
    result = job.execute_in_process(instance=instance)
    evaluations = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert len(evaluations) == 8
    lag = evaluations["checkpoint_lag"]
    assert not lag.passed
    assert lag.severity is dg.AssetCheckSeverity.WARN
    assert lag.description == "10 commits since the last checkpoint; up to 5 are fine"
    assert table.names() == before


def test_some_of_the_checks_can_be_run(
    table: TableBuilder, load: Load, instance: dg.DagsterInstance
) -> None:
    definitions = load(tables=[{"uri": table.store.root, "key": "lake/events"}])
    result = dg.materialize(
        definitions.resolve_asset_graph().assets_defs,
        selection=dg.AssetSelection.checks(dg.AssetCheckKey(KEY, "log_length")),
        instance=instance,
    )
    assert [each.check_name for each in result.get_asset_check_evaluations()] == ["log_length"]


def test_a_check_of_a_missing_table_fails(
    tmp_path: Path, load: Load, instance: dg.DagsterInstance
) -> None:
    definitions = load(tables=[{"uri": str(tmp_path / "absent"), "key": "lake/events"}])
    job = definitions.resolve_job_def("delta_maintenance_health")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    evaluations = result.get_asset_check_evaluations()
    assert len(evaluations) == 8
    assert not any(each.passed for each in evaluations)
    assert {each.severity for each in evaluations} == {dg.AssetCheckSeverity.ERROR}


def test_a_slow_table_delays_the_checks_of_no_other(
    table: TableBuilder,
    load: Load,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = TableBuilder(tmp_path / "other")
    other.commit([protocol(), metadata()])
    is_other_done = Event()
    assess_in_turn = health_checks._assess_table

    def assess(storage: Any, assessed: DeltaTable, remembered: Any) -> Assessment:
        if assessed.policy.uri == other.store.root:
            is_other_done.set()
        else:
            assert is_other_done.wait(60), "the first table holds up the second"
        return assess_in_turn(storage, assessed, remembered)

    monkeypatch.setattr(health_checks, "_assess_table", assess)
    definitions = load(tables=[{"uri": table.store.root}, {"uri": other.store.root}])
    job = definitions.resolve_job_def("delta_maintenance_health")
    evaluations = job.execute_in_process(instance=instance).get_asset_check_evaluations()
    assert len({each.asset_key for each in evaluations}) == 2


def test_checks_can_be_left_out(table: TableBuilder, load: Load) -> None:
    definitions = load(tables=[{"uri": table.store.root, "key": "lake/events"}], checks=False)
    assert not definitions.resolve_asset_graph().asset_check_keys


def test_every_check_fails_if_a_file_of_the_table_is_missing(table: TableBuilder) -> None:
    (named,) = Policy.model_validate(
        {"version": 1, "tables": [{"uri": table.store.root}]}
    ).named_tables
    sound = assess_table(table.open(), named, now=NOW)
    failed = replace(sound, status="failed", problem="the data file does not exist")
    found = judge(failed, DeltaTable(policy=named, key=KEY), HealthThresholds(), approval={})
    assert {(each.passed, each.message) for each in found} == {(False, failed.problem)}
