# Written by tools/operator_stubs.py from the records of the operations.
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from delta_maintenance_airflow.operators.base import (
    DeltaMaintenanceOperator,
    DeltaReportingOperator,
)
from delta_maintenance_airflow.operators.spark_base import DeltaSparkOperator

def __getattr__(name: str) -> Any: ...

class DeltaAddConstraintOperator(DeltaSparkOperator):
    name: str
    expression: str
    def __init__(self, *, name: str, expression: str, **kwargs: Any) -> None: ...

class DeltaBackfillRowIdsOperator(DeltaSparkOperator): ...
class DeltaCheckpointOperator(DeltaSparkOperator): ...
class DeltaChecksumOperator(DeltaMaintenanceOperator): ...
class DeltaCleanLogOperator(DeltaReportingOperator): ...
class DeltaClusterOperator(DeltaSparkOperator): ...
class DeltaCompactLogOperator(DeltaSparkOperator): ...

class DeltaDropFeatureOperator(DeltaMaintenanceOperator):
    feature: str
    def __init__(self, *, feature: str, **kwargs: Any) -> None: ...

class DeltaErasureReportOperator(DeltaReportingOperator):
    where: str
    def __init__(self, *, where: str, **kwargs: Any) -> None: ...

class DeltaExpireOperator(DeltaMaintenanceOperator):
    column: str
    older_than: timedelta | str
    def __init__(self, *, column: str, older_than: timedelta | str, **kwargs: Any) -> None: ...

class DeltaFsckOperator(DeltaReportingOperator, DeltaSparkOperator): ...

class DeltaKeepVersionOperator(DeltaMaintenanceOperator):
    name: str
    def __init__(self, *, name: str, **kwargs: Any) -> None: ...

class DeltaLayoutOperator(DeltaMaintenanceOperator): ...
class DeltaOptimizeOperator(DeltaSparkOperator): ...
class DeltaPurgeOperator(DeltaSparkOperator): ...
class DeltaRecomputeStatsOperator(DeltaReportingOperator, DeltaSparkOperator): ...

class DeltaSetClusteringOperator(DeltaMaintenanceOperator):
    by: Sequence[str] | str
    none: bool | str
    def __init__(
        self, *, by: Sequence[str] | str = ..., none: bool | str = ..., **kwargs: Any
    ) -> None: ...

class DeltaSetPropertiesOperator(DeltaMaintenanceOperator):
    properties: Mapping[str, str] | str
    remove: Sequence[str] | str
    def __init__(
        self,
        *,
        properties: Mapping[str, str] | str = ...,
        remove: Sequence[str] | str = ...,
        **kwargs: Any,
    ) -> None: ...

class DeltaUpgradeProtocolOperator(DeltaMaintenanceOperator):
    features: Sequence[str] | str
    def __init__(self, *, features: Sequence[str] | str = ..., **kwargs: Any) -> None: ...

class DeltaVacuumOperator(DeltaReportingOperator, DeltaSparkOperator): ...
