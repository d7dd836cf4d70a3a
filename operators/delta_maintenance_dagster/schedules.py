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
    description: str = "Runs what is due on each Delta table by its policy.",
) -> dg.ScheduleDefinition:
    """Runs a job of maintenance assets, or of health checks, at the times of a cron expression.

    What is due on each table is decided when its turn comes, by its policy; a table that needs
    nothing takes a look at its log. One that fails does not stop the others of the run.
    `running` turns the schedule on with its deployment; otherwise somebody does it in Dagster.
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
