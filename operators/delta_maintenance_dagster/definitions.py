"""All definitions for a set of tables: the component loads them, and Python code can use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from delta_maintenance.moved_arguments import moved_arguments
from delta_maintenance_dagster.commits.observation import build_table_asset
from delta_maintenance_dagster.commits.sensor import CommitSensor, build_commit_sensor
from delta_maintenance_dagster.health.checks import HealthThresholds, build_health_checks
from delta_maintenance_dagster.maintenance import RETRY_POLICY, build_maintenance_asset
from delta_maintenance_dagster.references import Reference
from delta_maintenance_dagster.resources import DeltaStorageResource
from delta_maintenance_dagster.spark.spark_resource import DeltaSparkResource
from delta_maintenance_dagster.tables import DeltaTable, require_unique_keys

_THRESHOLDS = HealthThresholds()
_SENSOR = CommitSensor()


def _with_checks(given: HealthThresholds | None, moved: dict[str, Any]) -> HealthThresholds | None:
    return (given or HealthThresholds()) if moved["checks"] else None


def _with_sensor(given: CommitSensor | None, moved: dict[str, Any]) -> CommitSensor:
    own = _SENSOR if given is None else given
    return CommitSensor(
        min_commits=moved.get("min_commits", own.min_commits),
        interval_seconds=moved.get("sensor_interval_seconds", own.interval_seconds),
    )


@moved_arguments("thresholds", ("checks",), _with_checks)
@moved_arguments("sensor", ("min_commits", "sensor_interval_seconds"), _with_sensor)
def build_definitions(
    tables: Sequence[DeltaTable],
    *,
    name: str = "delta_maintenance",
    storage: DeltaStorageResource | str | None = None,
    spark: DeltaSparkResource | str | None = None,
    thresholds: HealthThresholds | None = _THRESHOLDS,
    group_name: str = "delta_maintenance",
    retry_policy: dg.RetryPolicy = RETRY_POLICY,
    sensor: CommitSensor = _SENSOR,
) -> dg.Definitions:
    """The assets of the tables and of their maintenance, health checks, two jobs and a sensor.

    `storage` and `spark` are resources, or the keys of resources that Dagster provides. Without
    `thresholds`, tables have no health checks. The jobs are NAME and NAME_health, the sensor is
    NAME_commits.
    """
    require_unique_keys(tables)
    stores = Reference(storage if storage is not None else DeltaStorageResource())
    clusters = Reference(spark if spark is not None else DeltaSparkResource())
    maintenance = [
        build_maintenance_asset(
            table,
            storage=stores,
            spark=clusters,
            thresholds=thresholds,
            group_name=group_name,
            retry_policy=retry_policy,
        )
        for table in tables
    ]
    health = [
        build_health_checks(table, storage=stores, thresholds=thresholds)
        for table in tables
        if thresholds is not None
    ]
    if not tables:
        return dg.Definitions()
    job = dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*maintenance).without_checks(),
        description="Runs the operations that are due on each Delta table.",
    )
    health_job = dg.define_asset_job(
        f"{name}_health",
        selection=dg.AssetSelection.checks(*health),
        description="Compares the health of each Delta table with its policy.",
    )
    return dg.Definitions(
        assets=[
            *(build_table_asset(table, storage=stores) for table in tables if table.declared),
            *maintenance,
        ],
        asset_checks=health,
        jobs=[job, health_job] if health else [job],
        sensors=[
            build_commit_sensor(
                tables,
                name=f"{name}_commits",
                job=job,
                storage=stores,
                min_commits=sensor.min_commits,
                interval_seconds=sensor.interval_seconds,
            )
        ],
    )
