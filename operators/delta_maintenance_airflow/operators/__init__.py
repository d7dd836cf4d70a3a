"""Operators that maintain Delta tables."""

from delta_maintenance_airflow.operators.checkpoint import DeltaCheckpointOperator

__all__ = ["DeltaCheckpointOperator"]
