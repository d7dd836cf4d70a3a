"""The component: what YAML may say, and what Dagster makes of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster.components.core.package_entry import get_package_objects_in_module
from dagster.components.resolved.errors import ResolutionException
from dagster.components.testing.utils import create_defs_folder_sandbox
from jsonschema import Draft202012Validator
from pydantic import ValidationError

import delta_maintenance_dagster
from delta_maintenance.cli import starter_policy
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.policies.definition.rules import Rules
from delta_maintenance.submission import JobSpec
from delta_maintenance_dagster import (
    DeltaMaintenanceComponent,
    DeltaSparkResource,
    DeltaStorageResource,
    DeltaTableEntry,
)
from delta_maintenance_dagster.resources import Reference
from tests.support.hostile.canaries import SECRET
from tests.support.tables.table_builder import TableBuilder

Load = Callable[..., dg.Definitions]

POLICY = """\
version: 1
defaults:
  checkpoint: {max_commits: 7}
  storage: {connection: delta-lake}
tables:
  - {name: orders, uri: s3://lake/sales/orders, owner: sales, tags: [gold, "two words", größe]}
  - {uri: s3://lake/events, owner: people@example.com}
"""


def keys(definitions: dg.Definitions) -> set[str]:
    graph = definitions.resolve_asset_graph()
    return {key.to_user_string() for key in graph.get_all_asset_keys()}


def test_yaml_in_a_defs_folder_becomes_assets_checks_jobs_a_sensor_and_schedules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKE", "/data/lake")
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=DeltaMaintenanceComponent,
            defs_yaml_contents={
                "type": "delta_maintenance_dagster.DeltaMaintenanceComponent",
                "attributes": {
                    "defaults": {"checkpoint": {"max_commits": 5, "max_age": "2 days"}},
                    "tables": [{"uri": "{{ env.LAKE }}/events", "vacuum": True}],
                    "sensor": {"interval_seconds": 5, "min_commits": 3},
                    "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Paris"},
                    "health_schedule": {"cron": "0 * * * *", "running": True},
                },
            },
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, definitions):
            assert isinstance(component, DeltaMaintenanceComponent)
            (entry,) = component.tables
            assert entry.uri == "/data/lake/events"
            dg.Definitions.validate_loadable(definitions)
            assert keys(definitions) == {"data/lake/events", "data/lake/events/maintenance"}
            assert len(definitions.resolve_asset_graph().asset_check_keys) == 8
            sensor = definitions.resolve_sensor_def("delta_maintenance_commits")
            assert sensor.minimum_interval_seconds == 5
            assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
            nightly = definitions.resolve_schedule_def("delta_maintenance_schedule")
            assert nightly.execution_timezone == "Europe/Paris"
            assert nightly.default_status is dg.DefaultScheduleStatus.STOPPED
            hourly = definitions.resolve_schedule_def("delta_maintenance_health_schedule")
            assert hourly.default_status is dg.DefaultScheduleStatus.RUNNING


def test_scaffolded_yaml_loads_unchanged() -> None:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component_cls=DeltaMaintenanceComponent)
        written = yaml.safe_load((path / "defs.yaml").read_text())
        assert (
            written["attributes"]["defaults"] == yaml.safe_load(starter_policy.POLICY)["defaults"]
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
            assert keys(definitions) == {"lake/events", "lake/events/maintenance"}


def test_scaffolded_python_loads_unchanged() -> None:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=DeltaMaintenanceComponent, scaffold_format="python"
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
            assert keys(definitions) == {"lake/events", "lake/events/maintenance"}


def test_a_name_with_any_characters_becomes_a_key(load: Load) -> None:
    definitions = load(tables=[{"uri": "s3://my.lake/a b/part=1/größe"}, {"uri": "/lake/v1.2-x"}])
    dg.Definitions.validate_loadable(definitions)
    orders, events = "my.lake/a_b/part_1/gr__e", "lake/v1.2-x"
    assert keys(definitions) == {*map("{}/maintenance".format, (orders, events)), orders, events}
    graph = definitions.resolve_asset_graph()
    maintenance = graph.get(dg.AssetKey([*orders.split("/"), "maintenance"]))
    assert maintenance.parent_keys == {dg.AssetKey(orders.split("/"))}


def test_a_policy_file_of_airflow_works_unchanged(tmp_path: Path, load: Load) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    definitions = load(
        policy=str(file),
        keys={"orders": "lake/orders"},
        resources={"delta_lake": DeltaStorageResource()},
    )
    assert keys(definitions) == {
        "lake/orders",
        "lake/orders/maintenance",
        "lake/events",
        "lake/events/maintenance",
    }
    orders = definitions.resolve_asset_graph().get(dg.AssetKey(["lake", "orders"]))
    assert orders.owners == ["team:sales"]
    assert {"gold", "two_words", "gr_e"} <= set(orders.tags)
    assert orders.metadata["dagster/uri"] == "s3://lake/sales/orders"
    assert not orders.is_materializable
    events = definitions.resolve_asset_graph().get(dg.AssetKey(["lake", "events"]))
    assert events.owners == ["people@example.com"]


def test_a_connection_of_the_policy_requires_a_resource(tmp_path: Path, load: Load) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="delta_lake"):
        dg.Definitions.validate_loadable(load(policy=str(file)))


def test_secrets_of_resources_are_read_where_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "hush")
    resource = DeltaStorageResource(
        options={
            "AWS_SECRET_ACCESS_KEY": dg.EnvVar("LAKE_SECRET"),
            "AWS_SESSION_TOKEN": "${env:LAKE_SECRET}",
        }
    )
    assert "hush" not in repr(resource)
    assert "LAKE_SECRET" not in repr(resource)
    ready = resource.process_config_and_initialize()
    assert "hush" not in repr(ready)
    assert ready.storage_options(Rules().storage) == {
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_SESSION_TOKEN": "hush",
    }
    # Dagster makes an instance with databases each time that it reads them.
    reference = Reference(resource)
    assert reference.resolve(None) is reference.resolve(None)


def test_storage_options_of_the_policy_override_the_resource() -> None:
    resource = DeltaStorageResource(options={"AWS_REGION": "a", "AWS_ENDPOINT_URL": "b"})
    rules = Rules.model_validate({"storage": {"options": {"AWS_REGION": "c"}}})
    assert resource.storage_options(rules.storage) == {"AWS_REGION": "c", "AWS_ENDPOINT_URL": "b"}
    rules = Rules.model_validate({"storage": {"options": {"endpoint_url": "d"}}})
    assert resource.storage_options(rules.storage) == {"AWS_REGION": "a", "endpoint_url": "d"}


def test_a_table_with_an_asset_elsewhere_is_not_declared(load: Load) -> None:
    definitions = load(tables=[{"uri": "/lake/events", "declare": False}])

    @dg.asset(key=["lake", "events"])
    def events() -> None: ...

    merged = dg.Definitions.merge(dg.Definitions(assets=[events]), definitions)
    graph = merged.resolve_asset_graph()
    assert graph.get(dg.AssetKey(["lake", "events"])).is_materializable


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"tables": [{"uri": "/a", "checkpoint": {"max_comits": 1}}]}, "max_comits"),
        ({"tables": [{"uri": "/a"}], "sensor": {"interval": 1}}, "interval"),
        ({"tables": [{"name": "a"}]}, "a uri, a pattern or a catalog"),
        ({"tables": [{"uri": "s3://key:secret@lake/a"}]}, "credentials"),
        ({"tables": [{"uri": "/a", "storage": {"options": {"AWS_SECRET": "x"}}}]}, "secret"),
    ],
)
def test_a_mistake_in_yaml_is_reported_by_name(
    load: Load, attributes: dict[str, object], said: str
) -> None:
    with pytest.raises((ValidationError, ResolutionException), match=said):
        load(**attributes)


def test_dg_check_reports_the_line_of_a_wrong_key_with_the_valid_ones() -> None:
    model = DeltaMaintenanceComponent.get_model_cls()
    assert model is not None
    schema = Draft202012Validator(model.model_json_schema())
    attributes = {
        "defaults": {"vacum": True, "checkpoint": {"max_comits": 1}, "fsck": "often"},
        "tables": [{"url": "/a"}, {"uri": "{{ env.LAKE }}", "optimize": True}],
        "shedule": {},
    }
    # What `dg check yaml` prints, with the line of the last part of the path.
    mistakes = {(*error.absolute_path,): error.message for error in schema.iter_errors(attributes)}
    keys = {path: set(re.findall(r"\w+", message)) for path, message in mistakes.items()}
    assert "vacuum" in keys["defaults", "vacum"]
    assert "max_commits" in keys["defaults", "checkpoint", "max_comits"]
    assert "uri" in keys["tables", 0, "url"] and "schedule" in keys["shedule",]
    assert ("defaults", "fsck") in mistakes and len(mistakes) == 5
    assert schema.is_valid({"defaults": "{{ rules }}", "tables": "{{ tables }}"})


def test_two_tables_with_one_key_are_refused(load: Load) -> None:
    with pytest.raises(InvalidRequestError, match="another key"):
        load(tables=[{"uri": "s3://lake/events"}, {"uri": "/lake/events"}])


def test_a_file_and_tables_beside_it_are_refused(tmp_path: Path, load: Load) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    with pytest.raises(InvalidRequestError, match="not both"):
        load(policy=str(file), tables=[{"uri": "/a"}])


def test_tables_of_patterns_are_found_when_the_state_is_refreshed_and_at_no_other_time(
    table: TableBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = DeltaMaintenanceComponent(
        tables=[DeltaTableEntry(name="found", pattern=f"{tmp_path}/lake/*")]
    )
    state = tmp_path / "state.json"
    component.write_state_to_path(state)
    assert [each["uri"] for each in json.loads(state.read_text())["tables"]] == [
        f"{tmp_path}/lake/events"
    ]

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("looked up while definitions are loaded")

    monkeypatch.setattr("delta_maintenance.policies.discovery.discover", refused)
    context = dg.ComponentTree.for_test().load_context
    before = component.build_defs_from_state(context, None)
    assert keys(before) == set()
    assert len(keys(component.build_defs_from_state(context, state))) == 2


def test_importing_loads_neither_arrow_nor_spark_nor_airflow() -> None:
    script = """
import sys, dagster
before = set(sys.modules)
import delta_maintenance_dagster as package
from dagster.components.testing.utils import component_defs
component_defs(component=package.DeltaMaintenanceComponent.from_attributes_dict(
    attributes={"tables": [{"uri": "/lake/events", "vacuum": True}]}))
heavy = {"pyarrow", "pyspark", "numpy", "fsspec", "botocore", "airflow", "dagster_pipes"}
print(sorted(heavy & (set(sys.modules) - before)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_dg_finds_the_component_by_the_entry_point() -> None:
    (found,) = entry_points(group="dagster_dg_cli.registry_modules", name="delta_maintenance")
    assert found.load() is delta_maintenance_dagster


def test_everything_that_is_exported_is_there_and_listed() -> None:
    listed = dir(delta_maintenance_dagster)
    for name in delta_maintenance_dagster.__all__:
        assert getattr(delta_maintenance_dagster, name) is not None
        assert name in listed
    with pytest.raises(AttributeError, match="no attribute 'Component'"):
        _ = delta_maintenance_dagster.Component


def test_dg_lists_the_component_and_nothing_else() -> None:
    found = dict(get_package_objects_in_module(delta_maintenance_dagster))
    assert found == {"DeltaMaintenanceComponent": DeltaMaintenanceComponent}


@pytest.mark.parametrize(
    "address",
    [
        f"s3://AKIA1:{SECRET}@lake/t",
        f"s3:AKIA1:{SECRET}@lake/t",
        f"az://data/t?sv=1&sig={SECRET}",
        f"file://user:{SECRET}@host/t",
    ],
)
def test_an_address_with_credentials_is_refused_without_repeating_it(
    address: str, tmp_path: Path, load: Load
) -> None:
    policy = tmp_path / "policy.yml"
    job = JobSpec(operation="checkpoint", table="s3://lake/t")
    resource = DeltaSparkResource(report_folder=address)
    tries: list[Callable[[], object]] = [
        lambda: load(policy=str(policy)),
        lambda: load(tables=[{"uri": address}]),
        lambda: load(tables=[{"pattern": f"{address}/*"}]),
        lambda: DeltaTableEntry(uri=address),
        lambda: resource._report(tmp_path, job, None),  # type: ignore[arg-type]
    ]
    for key in ("uri", "pattern"):
        policy.write_text(json.dumps({"version": 1, "tables": [{key: address}]}))
        for attempt in tries:
            with pytest.raises((InvalidRequestError, ValidationError, ResolutionException)) as got:
                attempt()
            assert SECRET not in "".join(traceback.format_exception(got.value))
