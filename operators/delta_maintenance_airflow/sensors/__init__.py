"""Sensors on Delta tables."""

from delta_maintenance_airflow.sensors.commit import DeltaCommitSensor

__all__ = ["DeltaCommitSensor"]
