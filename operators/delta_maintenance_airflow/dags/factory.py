"""The Dags of a policy, as options of one function."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from delta_maintenance_airflow.dags.scheduled import RunLimits, scheduled_dag

if TYPE_CHECKING:
    from airflow.sdk import DAG

_DEFAULT_ARGS: Mapping[str, Any] = {"retries": 2, "retry_delay": timedelta(minutes=2)}


def delta_maintenance_dags(
    policy: str | None = None,
    *,
    dag_id: str = "delta_maintenance",
    schedule: Any = "@hourly",
    default_args: Mapping[str, Any] | None = None,
    work_args: Mapping[str, Any] | None = None,
    limits: RunLimits | None = None,
    on_commit: str | None = "delta_on_commit",
    manual: str | None = "delta_manual",
    short_retention: str | None = None,
) -> dict[str, DAG]:
    """Makes the Dags that maintain the tables of a policy. Call it in a file of the Dags folder.

    Airflow finds the Dags without further ado. Upgrading the package upgrades them. Several
    policies take several calls, with other IDs.

    :param policy: the file with the policy; by default the one that `[delta_maintenance] policy`
        names in Airflow's configuration.
    :param dag_id: of the Dag that maintains all tables on a schedule.
    :param schedule: of that Dag: anything that Airflow takes as one; None for runs by hand.
    :param default_args: of all tasks, over two retries after two minutes: `retries`, `owner`,
        callbacks and the like.
    :param work_args: of the tasks that open tables, over `default_args`: `pool`, `queue`,
        `executor_config`, `execution_timeout` and the like.
    :param limits: how much one run takes on.
    :param on_commit: the ID of the Dag that commits to the tables wake; None for none.
    :param manual: the ID of the Dag that runs one operation by hand; None for none. The health
        page looks for `delta_manual`.
    :param short_retention: the ID of a second Dag for manual runs, whose options may shorten a
        retention; None for none. Give the right to trigger it to few people.
    """
    arguments = {**_DEFAULT_ARGS, **(default_args or {})}
    work = dict(work_args or {})
    made = {
        dag_id: scheduled_dag(
            dag_id=dag_id,
            policy=policy,
            schedule=schedule,
            default_args=arguments,
            work_args=work,
            limits=limits or RunLimits(),
        )
    }
    if on_commit is not None:
        from delta_maintenance_airflow.dags.on_commit import on_commit_dag

        made[on_commit] = on_commit_dag(
            dag_id=on_commit, policy=policy, default_args=arguments, work_args=work
        )
    for name, shortens in ((manual, False), (short_retention, True)):
        if name is None:
            continue
        from delta_maintenance_airflow.dags.manual import manual_dag

        made[name] = manual_dag(
            dag_id=name,
            policy=policy,
            default_args=arguments,
            work_args=work,
            short_retention=shortens,
        )
    return made
