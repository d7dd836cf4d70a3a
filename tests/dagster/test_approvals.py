"""Approvals: a blocked run lists its plans, and the job of approvals runs exactly those."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import dagster as dg
import pytest
import yaml
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from delta_maintenance.policies import PendingPlan
from delta_maintenance.policies.definition import Policy
from delta_maintenance_dagster import DeltaTable, memory
from delta_maintenance_dagster.metadata import of_approval
from tests.support.markdown import markdown_rows
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

Load = Callable[..., dg.Definitions]
MAINTENANCE = dg.AssetKey(["lake", "events", "maintenance"])
OP = "lake__events__maintenance"
LONG_AGO = 1_600_000_000_000


@pytest.fixture
def definitions(table: TableBuilder, load: Load) -> dg.Definitions:
    """A table with one old removed file, whose vacuum needs an approval."""
    for file in Path(table.store.root).glob("*.parquet"):
        os.utime(file, (LONG_AGO / 1000, LONG_AGO / 1000))
    table.commit(
        [
            remove(
                "0.parquet",
                size=1,
                deletionTimestamp=LONG_AGO,
                extendedFileMetadata=True,
                partitionValues={},
            )
        ]
    )
    rules = {"checkpoint": {"max_commits": 5}, "vacuum": {"log_commits": False}}
    uri = table.store.root
    return load(tables=[{"uri": uri, "key": "lake/events", **rules, "approval": ["vacuum"]}])


def blocked_run(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> dg.ExecuteInProcessResult:
    return definitions.resolve_job_def("delta_maintenance").execute_in_process(instance=instance)


def approve(
    definitions: dg.Definitions, instance: dg.DagsterInstance, **config: Any
) -> dg.ExecuteInProcessResult:
    return definitions.resolve_job_def("delta_maintenance_approve").execute_in_process(
        instance=instance,
        run_config={"ops": {"run_approved_plans": {"config": config}}},
        raise_on_error=False,
    )


def told(instance: dg.DagsterInstance) -> dict[str, Any]:
    event = instance.get_latest_materialization_event(MAINTENANCE)
    assert event is not None and event.asset_materialization is not None
    return {name: each.value for name, each in event.asset_materialization.metadata.items()}


def plans_to_approve(text: str) -> Any:
    """The plans in the configuration that can be pasted into the launchpad."""
    config = yaml.safe_load(text.split("```")[1].removeprefix("yaml"))
    return config["ops"]["run_approved_plans"]["config"]["plans"]


def waiting(instance: dg.DagsterInstance) -> Any:
    return plans_to_approve(told(instance)["to_approve"])


def test_a_blocked_run_lists_the_waiting_plans(
    table: TableBuilder, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    result = blocked_run(definitions, instance)
    facts = told(instance)
    statuses = {row["operation"]: row["status"] for row in markdown_rows(facts["operations"])}
    assert statuses["checkpoint"].startswith("done, ")
    assert facts["status"] == "blocked"
    (plan,) = markdown_rows(facts["waiting"])
    assert plan["operation"] == "vacuum" and plan["deletes"].startswith("1 file, 1 B")
    assert (facts["waiting_plans"], facts["waiting_files"], facts["waiting_bytes"]) == (1, 1, 1)
    evidence = {row.get("fact"): row.get("value") for row in markdown_rows(facts["plans"])}
    assert evidence["version"] == "10"
    checks = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert not checks["approvals"].passed
    assert checks["approvals"].description == "vacuum waits for approval: 1 file, 1 B"
    assert {*checks["approvals"].metadata} >= {"waiting", "to_approve"}
    # The configuration can be pasted into the launchpad.
    assert "`delta_maintenance_approve`" in facts["to_approve"]
    assert plans_to_approve(facts["to_approve"]) == [plan["plan"]]


def test_approving_a_run_carries_out_its_plans_and_nothing_waits_afterwards(
    table: TableBuilder, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    blocked_run(definitions, instance)
    plans = waiting(instance)
    result = approve(definitions, instance, plans=plans)
    assert result.success
    facts = told(instance)
    assert facts["status"] == "done"
    assert facts["files_deleted"] == 1
    assert not Path(table.store.root, "0.parquet").exists()
    assert "waiting" not in facts and "to_approve" not in facts
    assert {e.check_name: e.passed for e in result.get_asset_check_evaluations()}["approvals"]
    assert approve(definitions, instance, plans=plans).success is False


def test_a_waiting_plan_is_not_repeated_and_can_be_approved_later(
    table: TableBuilder, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    blocked_run(definitions, instance)
    plans = waiting(instance)
    blocked_run(definitions, instance)
    facts = told(instance)
    assert facts["status"] == "blocked"
    assert facts["results"] == {} and plans == waiting(instance)
    assert approve(definitions, instance, plans=plans).success


def test_a_planning_run_keeps_the_waiting_plans(
    table: TableBuilder, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    blocked_run(definitions, instance)
    plans = waiting(instance)
    job = definitions.resolve_job_def("delta_maintenance")
    config = {"ops": {OP: {"config": {"plan_only": True}}}}
    assert job.execute_in_process(instance=instance, run_config=config).success
    assert approve(definitions, instance, plans=plans).success


def test_a_plan_whose_effect_has_changed_does_not_run(
    table: TableBuilder, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    blocked_run(definitions, instance)
    table.commit(
        [
            remove(
                "1.parquet",
                size=1,
                deletionTimestamp=LONG_AGO,
                extendedFileMetadata=True,
                partitionValues={},
            )
        ]
    )
    result = approve(definitions, instance, plans=waiting(instance))
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "the table has changed" in str(failure.step_failure_data)


def test_commits_that_do_not_change_the_plan_do_not_prevent_it(
    table: TableBuilder, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    blocked_run(definitions, instance)
    Path(table.store.root, "new.parquet").write_bytes(b"x")
    table.commit([add("new.parquet")])
    assert approve(definitions, instance, plans=waiting(instance)).success


@pytest.mark.parametrize(
    "config", [{"tables": ["lake/others"]}, {"operations": ["checkpoint"]}, {"plans": ["absent"]}]
)
def test_an_approval_without_plans_fails(
    definitions: dg.Definitions, instance: dg.DagsterInstance, config: dict[str, Any]
) -> None:
    blocked_run(definitions, instance)
    result = approve(definitions, instance, **{"plans": waiting(instance), **config})
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "waits for an approval" in str(failure.step_failure_data)


def test_plans_of_several_tables_and_runs_are_listed_and_approved_at_once(
    tmp_path: Path, load: Load, instance: dg.DagsterInstance
) -> None:
    rules = {"vacuum": {"log_commits": False}, "approval": ["vacuum"]}
    tables = {name: str(neglected(tmp_path / name).store.root) for name in ("north", "south")}
    definitions = load(
        tables=[{"uri": uri, "key": f"lake/{name}", **rules} for name, uri in tables.items()]
    )
    job = definitions.resolve_job_def("delta_maintenance")
    for name, tag in (("north", {"user": "ann|`"}), ("south", {"dagster/schedule_name": "daily"})):
        key = dg.AssetKey(["lake", name, "maintenance"])
        assert job.execute_in_process(instance=instance, asset_selection=[key], tags=tag).success
    listed = approve(definitions, instance)
    assert listed.success
    (output,) = (e for e in listed.all_node_events if e.event_type_value == "STEP_OUTPUT")
    facts = {name: v.value for name, v in output.event_specific_data.metadata.items()}
    assert (facts["waiting_plans"], facts["waiting_files"], facts["waiting_bytes"]) == (2, 2, 2)
    rows = markdown_rows(facts["waiting"])
    assert [row["asked by"] for row in rows] == ["ann¦'", "daily"]
    assert [row["table"] for row in rows] == [*tables.values()]
    plans = plans_to_approve(facts["to_approve"])
    assert plans == [row["plan"] for row in rows]

    wrong = approve(definitions, instance, plans=["0" * 12])
    assert not wrong.success
    # In another form of its address.
    one = approve(definitions, instance, plans=plans, tables=[f"file://{tables['north']}/"])
    assert one.success
    left = {folder.parent.name for folder in tmp_path.glob("*/0.parquet")}
    assert left == {"south"}
    # The plan that has already run is left out.
    assert approve(definitions, instance, plans=plans).success
    assert list(tmp_path.glob("*/0.parquet")) == []
    assert "No plan waits." in str(approve(definitions, instance).all_node_events)


def test_an_id_of_digits_alone_can_be_pasted_as_it_is_shown(
    table: TableBuilder,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PendingPlan, "id", "123456789012")
    blocked_run(definitions, instance)
    listed = approve(definitions, instance)
    (output,) = (e for e in listed.all_node_events if e.event_type_value == "STEP_OUTPUT")
    shown = output.event_specific_data.metadata["to_approve"].value
    assert approve(definitions, instance, plans=plans_to_approve(shown)).success


@pytest.mark.parametrize(
    ("repository", "place"), [("__repository__", "my%20lake"), ("main", "main@my%20lake")]
)
def test_a_link_opens_the_launchpad_with_the_plans(
    definitions: dg.Definitions, instance: dg.DagsterInstance, repository: str, place: str
) -> None:
    blocked_run(definitions, instance)
    event = instance.get_latest_materialization_event(MAINTENANCE)
    assert event is not None and event.asset_materialization is not None
    pending = memory.Memory.from_metadata(event.asset_materialization.metadata).pending
    origin = RemoteJobOrigin(
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("my lake"), repository), "job"
    )
    run = dg.DagsterRun(job_name="job", remote_job_origin=origin)
    text = str(of_approval("approve", run, pending)["to_approve"].value)
    assert text.startswith("[Open the launchpad with these plans](")
    address, _, query = text.partition("](")[2].partition(")")[0].partition("?")
    assert address == f"/locations/{place}/jobs/approve/playground/setup"
    (config,) = parse_qs(query)["config"]
    assert f"# {pending[0].label}, 1 file, 1 B" in config
    config = yaml.safe_load(config)["ops"]["run_approved_plans"]["config"]
    assert config == {"plans": [plan.id for plan in pending]}
    # Web servers refuse longer addresses.
    many = [replace(pending[0], uri=f"/lake/{number}") for number in range(100)]
    text = str(of_approval("approve", run, many)["to_approve"].value)
    assert len(plans_to_approve(text)) == 100


def neglected(folder: Path) -> TableBuilder:
    """A table with one old removed file."""
    table = TableBuilder(folder)
    table.commit([protocol(), metadata()])
    table.commit([add("0.parquet", size=1)])
    (folder / "0.parquet").write_bytes(b"x")
    os.utime(folder / "0.parquet", (LONG_AGO / 1000, LONG_AGO / 1000))
    dead = {"deletionTimestamp": LONG_AGO, "extendedFileMetadata": True, "partitionValues": {}}
    table.commit([remove("0.parquet", size=1, **dead)])
    return table


def test_all_forms_of_an_address_share_a_lease(tmp_path: Path) -> None:
    def pool(uri: str) -> str:
        policy = Policy(version=1).table_at(uri)
        return DeltaTable(policy=policy, key=dg.AssetKey(["t"])).pool

    assert pool("s3://lake/t") == pool("s3a://lake/t/") == "delta_s3_//lake/t"
    assert pool("/lake/t") == pool("file:///lake/t") != pool("/lake/u")


def test_no_job_asks_for_approvals_that_no_policy_requires(table: TableBuilder, load: Load) -> None:
    definitions = load(tables=[{"uri": table.store.root, "key": "lake/events"}])
    assert not definitions.get_repository_def().has_job("delta_maintenance_approve")


@pytest.mark.parametrize(("rules", "asks"), [({}, True), ({"approval": []}, False)])
def test_there_is_a_job_for_deletions_that_properties_may_request(
    rules: dict[str, Any], asks: bool, table: TableBuilder, load: Load, instance: dg.DagsterInstance
) -> None:
    table.commit([metadata(configuration={"delta.checkpointInterval": "2"})])
    entry = {"uri": table.store.root, "key": "lake/events", "from": "properties", **rules}
    definitions = load(tables=[entry])
    assert definitions.get_repository_def().has_job("delta_maintenance_approve") is asks
    assert blocked_run(definitions, instance).success
    (row,) = markdown_rows(told(instance)["operations"])
    assert row["operation"] == "checkpoint" and "by delta.checkpointInterval: " in row["why"]
