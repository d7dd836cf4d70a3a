"""Triggers on the commits of Delta tables, and on the end of Spark jobs."""

from delta_maintenance_airflow.triggers.commit import DeltaCommitTrigger
from delta_maintenance_airflow.triggers.commit_event import DeltaCommitEventTrigger
from delta_maintenance_airflow.triggers.policy_commits import DeltaPolicyCommitTrigger
from delta_maintenance_airflow.triggers.spark_job import DeltaSparkJobTrigger

__all__ = [
    "DeltaCommitEventTrigger",
    "DeltaCommitTrigger",
    "DeltaPolicyCommitTrigger",
    "DeltaSparkJobTrigger",
]
