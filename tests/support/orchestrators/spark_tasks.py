"""Tasks whose operators submit a Spark job."""

from __future__ import annotations

from typing import Any

from delta_maintenance_airflow.operators import DeltaCheckpointOperator


def operator(kind: Any = DeltaCheckpointOperator, **arguments: Any) -> Any:
    arguments = {"table_uri": "s3://lake/events", "engine": "spark", **arguments}
    return kind(task_id="task", **arguments)
