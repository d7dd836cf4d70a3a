"""Deferred tasks whose jobs run on a real Spark, by `airflow dags test`.

Part of `make nightly`; in `make test`, `tests/stack` defers such a task on a real scheduler.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG

from delta_maintenance.testing.table_builder import TableBuilder
from delta_maintenance_airflow.operators import DeltaCheckpointOperator
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from tests.support.servers.spark_processes import ConnectServer

pytest.importorskip("airflow.providers.apache.spark", reason="NO SPARK PROVIDER")
pytestmark = pytest.mark.spark

KIND = "v2-parquet"
START = datetime(2026, 1, 1)


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report folder."""
    (tmp_path / "reports").mkdir()
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__REPORT_FOLDER", str(tmp_path / "reports"))
    return tmp_path / "reports"


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(fields))


def told(run: Any) -> dict[str, Any]:
    [ti] = run.get_task_instances()
    assert str(ti.state) == "success"
    found: dict[str, Any] = ti.xcom_pull(ti.task_id)
    return found


def test_the_task_of_a_policy(
    run_dag: Callable[..., Any],
    neglected_table: TableBuilder,
    reports: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, conn_type="spark", host="local[1]")
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))
    table = {"name": "t", "uri": str(tmp_path / "table")}
    rules = {"checkpoint": {"max_commits": 5, "kind": KIND}, "engine": {"prefer": "spark"}}
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump({"version": 1, "tables": [{**table, **rules}]}))
    with DAG(dag_id="of_a_policy", schedule=None, start_date=START) as dag:
        DeltaPolicyRunOperator(task_id="run", table=table, policy=str(policy), deferrable=True)
    assert told(run_dag(dag))["operations"] == ["checkpoint: done"]
    assert neglected_table.open().snapshot().log.checkpoint is not None
    assert [path.suffix for path in reports.iterdir()] == [".json"]
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".json"]


def test_a_job_on_a_server_of_spark_connect(
    run_dag: Callable[..., Any],
    neglected_table: TableBuilder,
    reports: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("grpc", reason="NO SPARK CONNECT: its client needs grpcio")
    (tmp_path / "server").mkdir()
    server = ConnectServer(tmp_path / "server", Path(sys.executable))
    try:
        host, _, port = server.address.rpartition(":")
        connect(monkeypatch, conn_type="spark_connect", host=host, port=int(port))
        with DAG(dag_id="on_a_server", schedule=None, start_date=START) as dag:
            DeltaCheckpointOperator(
                task_id="run",
                table_uri=str(tmp_path / "table"),
                engine="spark",
                options={"kind": KIND},
                deferrable=True,
            )
        found = told(run_dag(dag))
    finally:
        server.close()
    assert (found["status"], found["engine"]) == ("written", "spark")
    assert neglected_table.open().snapshot().log.checkpoint is not None
    assert [path.suffix for path in reports.iterdir()] == [".json"]
