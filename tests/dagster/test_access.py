"""What only reads asks a catalog for credentials for reading, also beside work that writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.observe import observe

from delta_maintenance_dagster import DeltaMaintenanceComponent
from tests.support.emulators.s3_server import S3Server
from tests.support.servers.unity_delta import TOKEN, UnityServer, serve_guarded_table

Act = Callable[[dg.Definitions, dg.DagsterInstance], object]
TABLE = dg.AssetKey("main.s.t")


@pytest.fixture
def unity(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[UnityServer]:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.setenv(name, s3_server.storage_options[name])
    monkeypatch.setenv("LAKE_TOKEN", TOKEN)
    with serve_guarded_table(s3_server, s3_bucket) as server:
        yield server


@pytest.fixture
def definitions(unity: UnityServer, tmp_path: Path) -> dg.Definitions:
    """The table with a checkpoint that is due."""
    options = {"token": "${env:LAKE_TOKEN}"}
    lake = {"kind": "unity", "address": unity.url, "catalog": "main", "options": options}
    component = DeltaMaintenanceComponent.model_validate(
        {
            "catalogs": {"lake": lake},
            "tables": [{"catalog": "lake.**", "checkpoint": {"max_commits": 2}}],
        }
    )
    component.write_state_to_path(tmp_path / "state.json")
    context = dg.ComponentTree.for_test().load_context
    return component.build_defs_from_state(context, tmp_path / "state.json")


def _tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
    sensor = definitions.resolve_sensor_def("delta_maintenance_commits")
    context = dg.build_sensor_context(instance=instance, definitions=definitions)
    assert sensor.evaluate_tick(context).asset_events


def _observe(definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
    asset = definitions.resolve_assets_def(TABLE)
    assert observe([asset], instance=instance).success


def _check(definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
    job = definitions.resolve_job_def("delta_maintenance_health")
    assert job.execute_in_process(instance=instance).success


def _plan(definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
    assert _maintained(definitions, instance, plan_only=True).success


def _maintained(definitions: dg.Definitions, instance: dg.DagsterInstance, **config: Any) -> Any:
    job = definitions.resolve_job_def("delta_maintenance")
    (op,) = (node.name for node in job.nodes)
    return job.execute_in_process(
        instance=instance, run_config={"ops": {op: {"config": config}}} if config else None
    )


@pytest.mark.parametrize("act", [_tick, _observe, _check, _plan])
def test_sensors_observations_checks_and_plans_ask_for_reading(
    act: Act, definitions: dg.Definitions, unity: UnityServer, instance: dg.DagsterInstance
) -> None:
    act(definitions, instance)
    assert set(unity.vended()) == {"READ"}
    assert _maintained(definitions, instance).success
    assert "READ_WRITE" in unity.vended()
    unity.reject_keys()
    unity.requests.clear()
    act(definitions, instance)
    assert set(unity.vended()) == {"READ"}
