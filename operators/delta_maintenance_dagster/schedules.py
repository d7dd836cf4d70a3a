"""Schedules of maintenance and of health checks."""

from __future__ import annotations

import dagster as dg


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
