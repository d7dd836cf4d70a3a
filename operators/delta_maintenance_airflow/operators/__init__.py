"""Operators that maintain Delta tables: one for each operation.

Operators for the tables of a policy are in `policy`, operators for manual runs in `by_hand`. An
operation `NAME` of another distribution has the operator `DeltaNameOperator` here.
"""

from typing import Any

from delta_maintenance_airflow.operators.operations import (
    DeltaAddConstraintOperator,
    DeltaCheckpointOperator,
    DeltaChecksumOperator,
    DeltaDropFeatureOperator,
    DeltaFsckOperator,
    DeltaLogCleanupOperator,
    DeltaLogCompactionOperator,
    DeltaOptimizeOperator,
    DeltaProtocolUpgradeOperator,
    DeltaPurgeOperator,
    DeltaRowTrackingBackfillOperator,
    DeltaTablePropertiesOperator,
    DeltaVacuumOperator,
)

__all__ = [
    "DeltaAddConstraintOperator",
    "DeltaCheckpointOperator",
    "DeltaChecksumOperator",
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


def __getattr__(name: str) -> Any:
    if name.startswith("Delta") and name.endswith("Operator"):
        # Searches operations of other distributions, which most processes do not need.
        from delta_maintenance_airflow.operators.further import operator_named

        found = operator_named(name)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
