"""Names of Airflow that moved between the supported versions."""

from __future__ import annotations

from functools import cache

import pytest
from airflow import __version__, sdk
from packaging.version import Version

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

since_3_2 = pytest.mark.skipif(
    Version(__version__) < Version("3.2"), reason="BEFORE AIRFLOW 3.2: a provider has no secrets"
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
    "since_3_2",
    "since_3_3",
    "sync_bag_to_db",
]


def share_in_process_api() -> None:
    """Lets all tasks of `Dag.test` use one server of the execution API, as Airflow 3.3 does.

    Earlier versions start one for each task, which takes seconds.
    """
    from airflow.sdk.execution_time import supervisor

    if not hasattr(supervisor.in_process_api_server, "cache_info"):
        supervisor.in_process_api_server = cache(supervisor.in_process_api_server)
