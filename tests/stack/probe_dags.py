"""Dags that the tests of the real stack hurt."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from delta_maintenance_airflow.operators import DeltaCheckpointOperator
from delta_maintenance_airflow.sensors import DeltaCommitSensor

TABLE = os.environ.get("PROBE_TABLE", "/nowhere")
START = datetime(2026, 1, 1)

with DAG(dag_id="probe_sensor", schedule=None, start_date=START):
    DeltaCommitSensor(
        task_id="wait",
        table_uri=TABLE,
        after_version=1_000_000,
        deferrable=True,
        poke_interval=2,
        timeout=3600,
    )

with DAG(dag_id="probe_spark", schedule=None, start_date=START):
    DeltaCheckpointOperator(
        task_id="checkpoint",
        table_uri=TABLE,
        engine="spark",
        options={"kind": "v2-parquet"},
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
