"""Many tables in one step, skipped maintenance, and attributes of the assets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core import replace_flags
from delta_maintenance_dagster import DeltaStorageResource
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

Load = Callable[..., dg.Definitions]


@pytest.fixture
def lake(tmp_path: Path) -> list[TableBuilder]:
    """Three tables with six commits and no checkpoint."""
    tables = [TableBuilder(tmp_path / f"t{number}") for number in range(3)]
    for table in tables:
        table.commit([protocol(), metadata()])
        for number in range(5):
            table.commit([add(f"{number}.parquet")])
    return tables


def attributes(lake: list[TableBuilder], **more: Any) -> dict[str, Any]:
    return {
        "defaults": {"checkpoint": {"max_commits": 3}},
        "tables": [
            {"uri": table.store.root, "key": f"lake/t{number}"} for number, table in enumerate(lake)
        ],
        **more,
    }


def has_checkpoint(table: TableBuilder) -> bool:
    return any("checkpoint.parquet" in name for name in table.names())


def key(number: int) -> dg.AssetKey:
    return dg.AssetKey(["lake", f"t{number}", "maintenance"])


def steps(result: dg.ExecuteInProcessResult) -> list[str]:
    return [str(event.step_key) for event in result.all_events if event.is_step_start]


def test_several_tables_are_maintained_by_one_step(
    lake: list[TableBuilder], load: Load, instance: dg.DagsterInstance
) -> None:
    definitions = load(**attributes(lake, execution={"tables_per_step": 2}))
    dg.Definitions.validate_loadable(definitions)
    result = definitions.resolve_job_def("delta_maintenance").execute_in_process(instance=instance)
    assert steps(result) == ["delta_maintenance_1__maintenance", "delta_maintenance_2__maintenance"]
    assert all(map(has_checkpoint, lake))
    assert all(instance.get_latest_materialization_event(key(number)) for number in range(3))
    assert len(result.get_asset_check_evaluations()) == 3 * 8


def test_tables_share_a_step_unless_their_policy_prefers_spark(
    lake: list[TableBuilder], load: Load
) -> None:
    given = attributes(lake)
    given["tables"][1]["engine"] = {"prefer": "spark"}
    job = load(**given).resolve_job_def("delta_maintenance")
    assert {node.name for node in job.nodes} == {
        "delta_maintenance_1__maintenance",
        "lake__t1__maintenance",
    }


def test_tables_are_grouped_by_their_folder(lake: list[TableBuilder], load: Load) -> None:
    graph = load(**attributes(lake)).resolve_asset_graph()
    assert graph.get(dg.AssetKey(["lake", "t0"])).group_name == "lake"
    assert graph.get(key(0)).group_name == "delta_maintenance"


def test_a_run_may_select_some_tables_of_a_step(
    lake: list[TableBuilder], load: Load, instance: dg.DagsterInstance
) -> None:
    definitions = load(**attributes(lake, execution={"tables_per_step": 3}))
    job = definitions.resolve_job_def("delta_maintenance")
    assert job.execute_in_process(instance=instance, asset_selection=[key(1)]).success
    assert [has_checkpoint(table) for table in lake] == [False, True, False]


def test_a_table_that_fails_does_not_stop_the_others_of_its_step(
    lake: list[TableBuilder], load: Load, instance: dg.DagsterInstance
) -> None:
    Path(lake[0].store.root, "_delta_log", f"{2:020}.json").write_bytes(b"{")
    definitions = load(**attributes(lake, execution={"tables_per_step": 3}))
    job = definitions.resolve_job_def("delta_maintenance")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    assert [has_checkpoint(table) for table in lake] == [False, True, True]
    assert instance.get_latest_materialization_event(key(0)) is None
    assert instance.get_latest_materialization_event(key(2)) is not None
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "1 of 3 tables" in str(failure.step_failure_data)
    assert not [event for event in result.all_events if event.is_step_up_for_retry]


def test_the_health_of_several_tables_is_one_step_too(
    lake: list[TableBuilder], load: Load, instance: dg.DagsterInstance
) -> None:
    definitions = load(**attributes(lake, execution={"tables_per_step": 2, "in_process": True}))
    job = definitions.resolve_job_def("delta_maintenance_health")
    result = job.execute_in_process(instance=instance)
    assert steps(result) == ["delta_maintenance_1__health", "delta_maintenance_2__health"]
    assert len(result.get_asset_check_evaluations()) == 3 * 8


@pytest.mark.parametrize(
    ("execution", "name"),
    [({"in_process": True}, "in_process"), ({"max_concurrent": 2}, "multiprocess")],
)
def test_the_component_chooses_the_executor_of_its_jobs(
    lake: list[TableBuilder], load: Load, execution: dict[str, Any], name: str
) -> None:
    definitions = load(**attributes(lake, execution=execution))
    assert definitions.resolve_job_def("delta_maintenance").executor_def.name == name
    assert definitions.resolve_job_def("delta_maintenance_health").executor_def.name == name


def test_a_table_that_cannot_be_opened_does_not_stop_the_others_of_its_step(
    lake: list[TableBuilder], load: Load, instance: dg.DagsterInstance
) -> None:
    given = attributes(lake, execution={"tables_per_step": 3})
    given["tables"][0] = {
        "uri": "s3://lake/t0",
        "key": "lake/t0",
        "storage": {"options": {"AWS_REGION": "${env:NOT_SET_HERE}"}},
    }
    job = load(**given).resolve_job_def("delta_maintenance")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    assert [has_checkpoint(table) for table in lake] == [False, True, True]


def test_yaml_may_say_how_often_a_step_is_retried(lake: list[TableBuilder], load: Load) -> None:
    given = attributes(lake, execution={"retry_policy": {"max_retries": 5, "delay": 3}})
    step = load(**given).resolve_job_def("delta_maintenance").all_node_defs[0]
    assert step.retry_policy == dg.RetryPolicy(max_retries=5, delay=3)


# Materialize all


@dg.asset
def report() -> None:
    """An asset of the project."""


@pytest.mark.parametrize(
    ("selected", "execution", "tags", "maintained"),
    [
        (["report", "lake/t0/maintenance"], {}, {}, False),
        (["lake/t0/maintenance"], {}, {}, True),
        (["report", "lake/t0/maintenance"], {"with_other_assets": True}, {}, True),
        (
            ["report", "lake/t0/maintenance"],
            {},
            {"dagster/from_automation_condition": "true"},
            True,
        ),
    ],
)
def test_materialize_all_leaves_maintenance_out_unless_it_is_wanted(
    lake: list[TableBuilder],
    load: Load,
    instance: dg.DagsterInstance,
    selected: list[str],
    execution: dict[str, Any],
    tags: dict[str, str],
    maintained: bool,
) -> None:
    ours = load(**attributes(lake, execution=execution))
    definitions = dg.Definitions.merge(ours, dg.Definitions(assets=[report]))
    job = definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey.from_user_string(each) for each in selected],
        tags=tags,
    )
    assert result.success
    assert has_checkpoint(lake[0]) == maintained


# Attributes


def test_attributes_are_set_for_tables_and_for_their_maintenance(
    lake: list[TableBuilder], load: Load
) -> None:
    definitions = load(
        **attributes(
            lake,
            table_attributes=_attributes("bronze", fail_hours=24),
            maintenance_attributes=_attributes("upkeep", fail_hours=48),
        )
    )
    graph = definitions.resolve_asset_graph()
    for asset, name, hours in ((dg.AssetKey(["lake", "t0"]), "bronze", 24), (key(0), "upkeep", 48)):
        found = graph.get(asset)
        assert found.group_name == name
        assert found.owners == [f"team:{name}"]
        assert found.kinds == {"delta", name}
        assert found.tags["tier"] == name
        fresh = dg.FreshnessPolicy.time_window(
            fail_window=timedelta(hours=hours), warn_window=timedelta(hours=20)
        )
        assert found.freshness_policy == fresh
    plain = load(**attributes(lake)).resolve_asset_graph()
    assert plain.get(key(0)).freshness_policy is None
    assert plain.get(key(0)).group_name == "delta_maintenance"


def _attributes(name: str, *, fail_hours: int) -> dict[str, Any]:
    return {
        "group_name": name,
        "owners": [f"team:{name}"],
        "kinds": [name],
        "tags": {"tier": name},
        "freshness": {"fail_hours": fail_hours, "warn_hours": 20},
    }


# Storage options


def test_an_option_of_another_store_is_left_out() -> None:
    resource = DeltaStorageResource(options={"AWS_REGION": "a", "ANON": "true"})
    from delta_maintenance.policies.definition.rules import Rules

    rule = Rules.model_validate({"storage": {"options": {"AWS_REGION": "b"}}}).storage
    assert "AWS_REGION" not in resource.storage_options(rule, uri="gs://lake/t")
    assert "AWS_REGION" not in resource.storage_options(rule, uri="/lake/t")
    assert resource.storage_options(rule, uri="s3://lake/t")["AWS_REGION"] == "b"
    assert "AWS_REGION" in resource.storage_options(rule, uri="sftp://host/t")


@pytest.mark.parametrize("address", ["s3://lake/t", "/lake/t", "gs://lake/t"])
def test_an_option_that_no_store_has_is_an_error_while_definitions_are_loaded(
    load: Load, address: str
) -> None:
    tables = [{"name": "orders", "uri": address}]
    with pytest.raises(InvalidRequestError) as found:
        load(name="upkeep", tables=tables, storage={"options": {"AWS_REGOIN": "x"}})
    for part in ("upkeep", "orders", "AWS_REGOIN"):
        assert part in str(found.value)
    with pytest.raises(InvalidRequestError, match="AWS_REGOIN"):
        load(tables=[{**tables[0], "storage": {"options": {"AWS_REGOIN": "x"}}}])
    assert load(tables=tables, storage={"options": {"AWS_REGION": "${env:NOT_SET_HERE}"}})


@pytest.mark.parametrize(
    ("address", "option"), [("gs://lake/t", "AWS_REGION"), ("/lake/t", "endpoint_url")]
)
def test_an_option_of_another_store_is_an_error_if_it_is_given_for_one_table(
    load: Load, address: str, option: str
) -> None:
    rules = {"storage": {"options": {option: "x"}}}
    with pytest.raises(InvalidRequestError) as found:
        load(name="upkeep", tables=[{"name": "orders", "uri": address, **rules}])
    for part in ("upkeep", "orders", option, "another store"):
        assert part in str(found.value)
    both = [{"uri": address}, {"uri": "s3://lake/other"}]
    assert load(defaults=rules, tables=both)
    assert load(tables=[{"uri": "s3://lake/t", **rules}])


# Messages and warnings


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("run fsck --repair, which", "run fsck with the option repair, which"),
        ("or use --engine local", "or use the option engine local"),
        (
            "fsck --repair --remove-missing-files; nothing",
            "fsck with the options repair, remove_missing_files; nothing",
        ),
        ("required with --log-commits", "required with the option log_commits"),
        ("(see --log-commits)", "(see the option log_commits)"),
        ("a-b -- c", "a-b -- c"),
        ("table /lake/raw--events: gone", "table /lake/raw--events: gone"),
        ("part-0--a.parquet, /lake/--x/y", "part-0--a.parquet, /lake/--x/y"),
    ],
)
def test_flags_of_the_command_line_become_options_of_the_launchpad(message: str, told: str) -> None:
    assert replace_flags(message) == told


def test_loading_warns_of_nothing_that_is_in_beta() -> None:
    script = """
import warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=ResourceWarning)
import dagster as dg
import delta_maintenance_dagster as package
from dagster.components.testing.utils import component_defs
warnings.simplefilter("error", dg.BetaWarning)
warnings.simplefilter("error", dg.PreviewWarning)
dg.Definitions.validate_loadable(component_defs(
    component=package.DeltaMaintenanceComponent.from_attributes_dict(attributes={
        "tables": [{"uri": "/lake/a", "vacuum": True}, {"uri": "/lake/b", "approval": ["vacuum"]}],
        "schedule": {"cron": "0 2 * * *"},
        "execution": {"tables_per_step": 2, "pool": "delta"},
        "maintenance_attributes": {"freshness": {"fail_hours": 48}}})))
print("loaded")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "loaded", done.stderr[-2000:]


def test_a_code_server_that_asks_for_the_checks_is_not_warned() -> None:
    """In the folder of a project, Dagster makes other definitions of them."""
    script = """
import warnings
import dagster as dg
warnings.simplefilter("error", dg.BetaWarning)
from delta_maintenance_dagster import DeltaMaintenanceComponent
from dagster.components.testing.utils import create_defs_folder_sandbox
with create_defs_folder_sandbox() as sandbox:
    sandbox.scaffold_component(component_cls=DeltaMaintenanceComponent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        with sandbox.build_all_defs() as definitions:
            repository = definitions.get_repository_def()
    print(len(repository.asset_checks_defs_by_key), "checks")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.endswith("\n8 checks\n"), done.stderr[-2000:]
