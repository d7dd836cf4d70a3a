"""Connections to the stores of Delta tables."""

from delta_maintenance_airflow.hooks.delta import DeltaHook

__all__ = ["DeltaHook"]
