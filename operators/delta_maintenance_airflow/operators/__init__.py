"""Operators that maintain Delta tables: one for each operation.

Those for the tables of a policy are imported from `policy`, those for what somebody asks for from
`by_hand`.
"""

from delta_maintenance_airflow.operators.add_constraint import DeltaAddConstraintOperator
from delta_maintenance_airflow.operators.backfill_row_ids import DeltaRowTrackingBackfillOperator
from delta_maintenance_airflow.operators.checkpoint import DeltaCheckpointOperator
from delta_maintenance_airflow.operators.clean_log import DeltaLogCleanupOperator
from delta_maintenance_airflow.operators.compact_log import DeltaLogCompactionOperator
from delta_maintenance_airflow.operators.drop_feature import DeltaDropFeatureOperator
from delta_maintenance_airflow.operators.fsck import DeltaFsckOperator
from delta_maintenance_airflow.operators.optimize import DeltaOptimizeOperator
from delta_maintenance_airflow.operators.purge import DeltaPurgeOperator
from delta_maintenance_airflow.operators.set_properties import DeltaTablePropertiesOperator
from delta_maintenance_airflow.operators.upgrade_protocol import DeltaProtocolUpgradeOperator
from delta_maintenance_airflow.operators.vacuum import DeltaVacuumOperator

__all__ = [
    "DeltaAddConstraintOperator",
    "DeltaCheckpointOperator",
    "DeltaDropFeatureOperator",
    "DeltaFsckOperator",
    "DeltaLogCleanupOperator",
    "DeltaLogCompactionOperator",
    "DeltaOptimizeOperator",
    "DeltaProtocolUpgradeOperator",
    "DeltaPurgeOperator",
    "DeltaRowTrackingBackfillOperator",
    "DeltaTablePropertiesOperator",
    "DeltaVacuumOperator",
]
