"""Operators that maintain Delta tables: one for each operation."""

from delta_maintenance_airflow.operators.backfill_row_ids import DeltaRowTrackingBackfillOperator
from delta_maintenance_airflow.operators.checkpoint import DeltaCheckpointOperator
from delta_maintenance_airflow.operators.clean_log import DeltaLogCleanupOperator
from delta_maintenance_airflow.operators.compact_log import DeltaLogCompactionOperator
from delta_maintenance_airflow.operators.drop_feature import DeltaDropFeatureOperator
from delta_maintenance_airflow.operators.fsck import DeltaFsckOperator
from delta_maintenance_airflow.operators.set_properties import DeltaTablePropertiesOperator
from delta_maintenance_airflow.operators.upgrade_protocol import DeltaProtocolUpgradeOperator
from delta_maintenance_airflow.operators.vacuum import DeltaVacuumOperator

__all__ = [
    "DeltaCheckpointOperator",
    "DeltaDropFeatureOperator",
    "DeltaFsckOperator",
    "DeltaLogCleanupOperator",
    "DeltaLogCompactionOperator",
    "DeltaProtocolUpgradeOperator",
    "DeltaRowTrackingBackfillOperator",
    "DeltaTablePropertiesOperator",
    "DeltaVacuumOperator",
]
