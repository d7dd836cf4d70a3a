"""Names of Airflow that moved between the supported versions."""

from __future__ import annotations

import pytest
from airflow import sdk

try:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
except ImportError:
    # Until 3.1.
    from airflow.models.dagbag import DagBag, sync_bag_to_db

try:
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:
    # Until 3.1.
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferred,
    )
except ImportError:
    # Until 3.1.
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferred,
    )

since_3_3 = pytest.mark.skipif(
    not hasattr(sdk, "ResumableJobMixin"), reason="BEFORE AIRFLOW 3.3: it has no stored states"
)

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "DagBag",
    "DagSerialization",
    "TaskDeferred",
    "since_3_3",
    "sync_bag_to_db",
]
