"""All definitions for a set of tables: the component loads them, and Python code can use them."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields as types.

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from delta_maintenance_dagster.approvals import build_approval_job
from delta_maintenance_dagster.commits import CommitSensor, build_commit_sensor, build_table_asset
from delta_maintenance_dagster.health_checks import HealthThresholds, build_health_step
from delta_maintenance_dagster.maintenance import RETRY_POLICY, StepSettings, build_maintenance_step
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference
from delta_maintenance_dagster.spark_resource import DeltaSparkResource
from delta_maintenance_dagster.step_resources import SharedState, StepResources
from delta_maintenance_dagster.tables import DeltaTable, require_unique_keys

_THRESHOLDS = HealthThresholds()
_SENSOR = CommitSensor()


def _retry_policy(context: dg.ResolutionContext, given: Any) -> dg.RetryPolicy:
    value = context.resolve_value(given)
    return dg.RetryPolicy(max_retries=int(value["max_retries"]), delay=value.get("delay"))


class Execution(dg.Model, dg.Resolvable):
    """How runs over many tables are divided, and what they share."""

    tables_per_step: int = Field(
        default=25,
        ge=1,
        description=(
            "Tables that one step maintains. Each step is a process that loads the definitions, "
            "so larger steps cost less, and smaller ones run more in parallel. A table whose "
            "policy prefers Spark has a step of its own."
        ),
    )
    in_process: bool = Field(
        default=False,
        description="Whether the jobs run their steps in the process of the run, in order.",
    )
    max_concurrent: int | None = Field(
        default=None, ge=1, description="Steps of one run at the same time, at most."
    )
    pool: str | None = Field(
        default=None,
        description=(
            "A pool of the instance that limits the steps of all runs at the same time. It needs "
            "`run_monitoring` with `free_slots_after_run_end_seconds` in `dagster.yaml`; otherwise "
            "a killed run keeps its slots."
        ),
    )
    retry_policy: Annotated[
        # A dg.RetryPolicy, which pydantic would convert.
        Any,
        dg.Resolver(
            _retry_policy,
            model_field_type=dict[str, float],
            description=(
                "`max_retries` and `delay` in seconds, for temporary failures; by default two "
                "retries after at least a minute."
            ),
        ),
    ] = RETRY_POLICY
    with_other_assets: bool = Field(
        default=False,
        description=(
            "Whether *Materialize all* maintains the tables too, if it is used together with "
            "other assets. By default, only jobs, the sensor, automation conditions and "
            "materializing maintenance alone do."
        ),
    )

    state: str | None = Field(
        default=None,
        description=(
            "A folder in any store, used for nothing else, that keeps assessments: failures are "
            "acknowledged there with `delta-maintenance acknowledge`. Its storage options are "
            "those of the component."
        ),
    )

    def executor(self) -> dg.ExecutorDefinition | None:
        """Returns the executor of the jobs; None for that of the project."""
        if self.in_process:
            return dg.in_process_executor
        if self.max_concurrent is not None:
            configured: dg.ExecutorDefinition = dg.multiprocess_executor.configured(
                {"max_concurrent": self.max_concurrent}
            )
            return configured
        return None


_EXECUTION = Execution()
_CONSOLE: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "INFO"}}}}
"""`dg launch` prints what was done, without Dagster's own events, which the web pages have."""


def build_definitions(
    tables: Sequence[DeltaTable],
    *,
    name: str = "delta_maintenance",
    storage: DeltaStorageResource | str | None = None,
    spark: DeltaSparkResource | str | None = None,
    thresholds: HealthThresholds | None = _THRESHOLDS,
    group_name: str = "delta_maintenance",
    sensor: CommitSensor = _SENSOR,
    execution: Execution = _EXECUTION,
) -> dg.Definitions:
    """The assets of the tables and of their maintenance, health checks, jobs and a sensor.

    `storage` and `spark` are resources, or the keys of resources that Dagster provides. Without
    `thresholds`, tables have no health checks. The jobs are NAME, NAME_health, and NAME_approve if
    the policy of a table requires approvals; the sensor is NAME_commits.
    """
    require_unique_keys(tables)
    if not tables:
        return dg.Definitions()
    resources = StepResources.for_all(
        tables,
        storage=Reference(storage if storage is not None else DeltaStorageResource()),
        spark=Reference(spark if spark is not None else DeltaSparkResource()),
    )
    shared = None
    if execution.state is not None:
        shared = SharedState(uri=execution.state, storage=resources.storage)
    approved = [table for table in tables if table.policy.rules.asks]
    settings = StepSettings(
        name=name,
        thresholds=thresholds,
        retry_policy=execution.retry_policy,
        pool=execution.pool,
        with_other_assets=execution.with_other_assets,
        approval_job=f"{name}_approve" if approved else None,
        state=shared,
    )
    steps = list(_steps(tables, name, execution.tables_per_step))
    maintenance = [
        build_maintenance_step(
            step_tables,
            name=f"{step}__maintenance",
            resources=resources,
            group_name=group_name,
            settings=settings,
        )
        for step, step_tables in steps
    ]
    health = [
        build_health_step(
            step_tables,
            name=f"{step}__health",
            storage=resources.storage,
            thresholds=thresholds,
            state=shared,
            approval_job=settings.approval_job,
        )
        for step, step_tables in steps
        if thresholds is not None
    ]
    job = dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*maintenance).without_checks(),
        config=_CONSOLE,
        executor_def=execution.executor(),
        description="Runs the operations that are due on each Delta table.",
    )
    health_job = dg.define_asset_job(
        f"{name}_health",
        selection=dg.AssetSelection.checks(*health),
        config=_CONSOLE,
        executor_def=execution.executor(),
        description="Compares the health of each Delta table with its policy.",
    )
    approval_job = build_approval_job(
        approved, name=f"{name}_approve", resources=resources, settings=settings
    )
    return dg.Definitions(
        assets=[
            *(
                build_table_asset(table, storage=resources.storage)
                for table in tables
                if table.declared
            ),
            *maintenance,
        ],
        asset_checks=health,
        jobs=[job, *([health_job] if health else []), *([approval_job] if approved else [])],
        sensors=[
            build_commit_sensor(
                tables,
                name=f"{name}_commits",
                job=job,
                storage=resources.storage,
                min_commits=sensor.min_commits,
                interval_seconds=sensor.interval_seconds,
                new_tables=sensor.new_tables,
            )
        ],
    )


def _steps(
    tables: Sequence[DeltaTable], name: str, size: int
) -> Iterator[tuple[str, Sequence[DeltaTable]]]:
    """Yields the tables of each step, and the beginning of its name."""
    together: list[DeltaTable] = []
    for table in tables:
        if size == 1 or table.policy.rules.engine.prefer == "spark":
            yield table.op_name, [table]
        else:
            together.append(table)
    if len(together) == 1:
        yield together[0].op_name, together
        return
    for number, begin in enumerate(range(0, len(together), size), start=1):
        yield f"{name}_{number}", together[begin : begin + size]


def build_maintenance_schedule(
    *,
    name: str,
    job_name: str,
    cron_schedule: str,
    timezone: str = "UTC",
    running: bool = False,
    description: str = "Runs the operations that are due on each Delta table.",
) -> dg.ScheduleDefinition:
    """Runs a job of maintenance assets, or of health checks, at the times of a cron expression.

    The due operations of a table are determined when its run starts; a table that needs no
    maintenance costs one read of its log. A failure on one table does not stop the others of the
    run. `running` turns the schedule on when it is deployed; otherwise, turn it on in Dagster.
    """
    return dg.ScheduleDefinition(
        name=name,
        job_name=job_name,
        cron_schedule=cron_schedule,
        execution_timezone=timezone,
        description=description,
        default_status=(
            dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
        ),
    )
