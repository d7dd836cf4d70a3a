"""Ready-to-run Dags for the tables of a policy. A Dag file with one call makes all of them:

from delta_maintenance_airflow.dags import delta_maintenance_dags

delta_maintenance_dags(policy="/opt/airflow/policy.yaml")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from delta_maintenance_airflow.dags.scheduled import RunLimits, scheduled_dag

if TYPE_CHECKING:
    from airflow.sdk import DAG

__all__ = ["DagIds", "RunLimits", "delta_maintenance_dags"]

_DEFAULT_ARGS: Mapping[str, Any] = {"retries": 2, "retry_delay": timedelta(minutes=2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DagIds:
    """The IDs of the Dags of a policy; None leaves a Dag out."""

    scheduled: str = "delta_maintenance"
    """Maintains all tables on a schedule."""
    on_commit: str | None = "delta_on_commit"
    """Runs when there are commits to the tables."""
    manual: str | None = "delta_manual"
    """Runs one operation manually. The form on the health page finds it by its tag."""
    short_retention: str | None = None
    """A second Dag for manual runs, whose options may shorten a retention. Give the right to
    trigger it to few people."""


def delta_maintenance_dags(
    policy: str | None = None,
    *,
    ids: DagIds | None = None,
    schedule: Any = "@hourly",
    default_args: Mapping[str, Any] | None = None,
    work_args: Mapping[str, Any] | None = None,
    limits: RunLimits | None = None,
) -> dict[str, DAG]:
    """Makes the Dags that maintain the tables of a policy. Call it in a file of the Dags folder.

    Airflow finds the Dags without further code, and upgrading the package upgrades them. Call the
    function once for each policy, with different IDs.

    :param policy: the file with the policy; the default is `[delta_maintenance] policy` in the
        configuration of Airflow.
    :param ids: the IDs of the Dags, by default those of `DagIds`.
    :param schedule: the schedule of the Dag that maintains all tables, of any kind that Airflow
        supports; None for manual runs only.
    :param default_args: arguments of all tasks, such as `retries`, `owner` and callbacks. The
        default is two retries with a delay of two minutes.
    :param work_args: arguments of the tasks that open tables, which override `default_args`:
        `pool`, `queue`, `executor_config`, `execution_timeout` and others.
    :param limits: how many tables one run maintains, and how long it waits for approvals.
    """
    ids = ids or DagIds()
    arguments = {**_DEFAULT_ARGS, **(default_args or {})}
    run_work_args = dict(work_args or {})
    dags = {
        ids.scheduled: scheduled_dag(
            dag_id=ids.scheduled,
            policy=policy,
            schedule=schedule,
            default_args=arguments,
            work_args=run_work_args,
            limits=limits or RunLimits(),
        )
    }
    if ids.on_commit is not None:
        from delta_maintenance_airflow.dags.on_commit import on_commit_dag

        dags[ids.on_commit] = on_commit_dag(
            dag_id=ids.on_commit, policy=policy, default_args=arguments, work_args=run_work_args
        )
    for name, shortens in ((ids.manual, False), (ids.short_retention, True)):
        if name is None:
            continue
        from delta_maintenance_airflow.dags.manual import manual_dag

        dags[name] = manual_dag(
            dag_id=name,
            policy=policy,
            default_args=arguments,
            work_args=run_work_args,
            short_retention=shortens,
        )
    return dags
