"""What only reads asks a catalog for credentials for reading, also beside work that writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.operations.watch import WaitCondition
from delta_maintenance_airflow.operators import DeltaCheckpointOperator
from delta_maintenance_airflow.operators.policy import DeltaAssessOperator
from delta_maintenance_airflow.sensors import DeltaCommitSensor
from delta_maintenance_airflow.triggers import DeltaCommitEventTrigger, DeltaCommitTrigger
from tests.support.emulators.s3_server import S3Server
from tests.support.orchestrators.watching import run
from tests.support.servers.unity_delta import TOKEN, UnityServer, serve_guarded_table

NAME = "uc://main.s.t"


@pytest.fixture
def unity(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[UnityServer]:
    """The catalog, the connection `lake` to it, and a policy for its table."""
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.setenv(name, s3_server.storage_options[name])
    with serve_guarded_table(s3_server, s3_bucket) as server:
        connection = {"conn_type": "delta_unity_catalog", "host": server.url, "password": TOKEN}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
        policy = {
            "version": 1,
            "defaults": {"checkpoint": {"max_commits": 2}},
            "catalogs": {"lake": {"kind": "unity", "catalog": "main", "connection": "lake"}},
            "tables": [{"catalog": "lake.**"}],
        }
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
        monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__POLICY", str(tmp_path / "policy.yaml"))
        monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))
        yield server


def _poke(unity: UnityServer, context: Any) -> None:
    sensor = DeltaCommitSensor(
        task_id="s",
        table_uri=NAME,
        delta_conn_id="lake",
        after_version=0,
        commits={"properties": ["delta.appendOnly"]},
    )
    sensor.poke(context)


def _wait(unity: UnityServer, context: Any) -> None:
    condition = WaitCondition(version=2).to_json()
    trigger = DeltaCommitTrigger(table_uri=NAME, delta_conn_id="lake", condition=condition)
    assert run(_first(trigger.run()))["status"] == "success"


def _watch(unity: UnityServer, context: Any) -> None:
    trigger = DeltaCommitEventTrigger(table_uri=NAME, delta_conn_id="lake", after_version=-1)
    assert run(_first(trigger.run()))["status"] == "changed"


async def _first(events: Any) -> Any:
    async with aclosing(events) as payloads:
        return (await anext(payloads)).payload


def _assess(unity: UnityServer, context: Any) -> None:
    table = {"name": NAME, "uri": unity.tables["main.s.t"].location}
    DeltaAssessOperator(task_id="a", tables=[table]).execute(context)


@pytest.mark.parametrize("act", [_poke, _wait, _watch, _assess])
def test_sensors_triggers_and_assessments_ask_for_reading(
    act: Callable[[UnityServer, Any], None], unity: UnityServer, task_context: Any
) -> None:
    act(unity, task_context)
    assert set(unity.vended()) == {"READ"}
    write = DeltaCheckpointOperator(task_id="c", table_uri=NAME, delta_conn_id="lake")
    write.execute(task_context)
    assert "READ_WRITE" in unity.vended()
    unity.reject_keys()
    unity.requests.clear()
    act(unity, task_context)
    assert set(unity.vended()) == {"READ"}
