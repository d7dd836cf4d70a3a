"""Triggers on the commits of Delta tables."""

from delta_maintenance_airflow.triggers.commit import DeltaCommitTrigger
from delta_maintenance_airflow.triggers.commit_event import DeltaCommitEventTrigger
from delta_maintenance_airflow.triggers.policy_commits import DeltaPolicyCommitTrigger

__all__ = ["DeltaCommitEventTrigger", "DeltaCommitTrigger", "DeltaPolicyCommitTrigger"]
