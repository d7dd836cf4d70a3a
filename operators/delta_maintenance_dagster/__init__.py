"""The Dagster integration of delta-maintenance: a component and its parts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from delta_maintenance import __version__
from delta_maintenance.dependencies import require_versions

if TYPE_CHECKING:
    from delta_maintenance_dagster.approvals import ApprovalConfig, build_approval_job
    from delta_maintenance_dagster.commits import CommitSensor, build_commit_sensor
    from delta_maintenance_dagster.component import (
        DeltaMaintenanceComponent,
        DeltaTableEntry,
        Schedule,
    )
    from delta_maintenance_dagster.definitions import (
        Execution,
        build_definitions,
        build_maintenance_schedule,
    )
    from delta_maintenance_dagster.health_checks import HealthThresholds, build_health_checks
    from delta_maintenance_dagster.maintenance import MaintenanceConfig, build_maintenance_asset
    from delta_maintenance_dagster.resources import DeltaStorageResource
    from delta_maintenance_dagster.spark_resource import DeltaSparkResource
    from delta_maintenance_dagster.tables import AssetAttributes, DeltaTable, Freshness

__all__ = [
    "ApprovalConfig",
    "AssetAttributes",
    "CommitSensor",
    "DeltaMaintenanceComponent",
    "DeltaSparkResource",
    "DeltaStorageResource",
    "DeltaTable",
    "DeltaTableEntry",
    "Execution",
    "Freshness",
    "HealthThresholds",
    "MaintenanceConfig",
    "Schedule",
    "__version__",
    "build_approval_job",
    "build_commit_sensor",
    "build_definitions",
    "build_health_checks",
    "build_maintenance_asset",
    "build_maintenance_schedule",
]

_MODULES = {
    "ApprovalConfig": "approvals",
    "AssetAttributes": "tables",
    "CommitSensor": "commits",
    "DeltaMaintenanceComponent": "component",
    "DeltaSparkResource": "spark_resource",
    "DeltaStorageResource": "resources",
    "DeltaTable": "tables",
    "DeltaTableEntry": "component",
    "Execution": "definitions",
    "Freshness": "tables",
    "HealthThresholds": "health_checks",
    "MaintenanceConfig": "maintenance",
    "Schedule": "component",
    "build_approval_job": "approvals",
    "build_commit_sensor": "commits",
    "build_definitions": "definitions",
    "build_health_checks": "health_checks",
    "build_maintenance_asset": "maintenance",
    "build_maintenance_schedule": "definitions",
}

OLDEST = {"dagster": "1.12"}

require_versions(OLDEST)
# Imported here because old versions of Dagster do not have it.
from dagster_shared.libraries import DagsterLibraryRegistry  # noqa: E402

DagsterLibraryRegistry.register("delta-maintenance", __version__, is_dagster_package=False)


def __getattr__(name: str) -> Any:
    # Creating the models of policies takes time, and every code location loads the entry point of
    # this package, whether or not it has Delta tables.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
