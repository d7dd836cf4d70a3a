"""The Dag that is woken by commits to the tables that a policy names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, AssetAny, get_current_context, task

from delta_maintenance_airflow.dags.scheduled import START, TAGS
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from delta_maintenance_airflow.policy_assets import changed_tables, watched_assets

_DOCUMENTATION = """### Maintenance of Delta tables when they change

Woken by new commits to the tables that the policy names with their address: of each table that has
changed, what is due by its policy is done at once, instead of with the next scheduled run. Commits
of maintenance wake nobody, neither those of this package nor OPTIMIZE, VACUUM and the like of
others.

The triggerer asks each table's log every 30 seconds for what is new, with one or two requests. One
trigger watches all tables of a store. What it has told is remembered by Airflow: after a restart
nothing is missed.

Tables that are behind patterns are looked after by the scheduled Dag alone, which may stand beside
this one: on each table one of them is at work at a time.
"""


def on_commit_dag(
    *,
    dag_id: str,
    policy: str | None,
    default_args: Mapping[str, Any],
    work_args: Mapping[str, Any],
    min_commits: int = 1,
) -> DAG:
    """The Dag; see `delta_maintenance_dags`."""
    assets = watched_assets(policy, min_commits=min_commits)
    with DAG(
        dag_id=dag_id,
        description="Does what is due on a Delta table of the policy once it has changed.",
        doc_md=_DOCUMENTATION,
        schedule=AssetAny(*assets) if assets else None,
        start_date=START,
        catchup=False,
        max_active_runs=4,
        default_args=dict(default_args),
        tags=TAGS,
    ) as dag:

        @task
        def tables() -> list[dict[str, Any]]:
            """The tables that have changed."""
            events = get_current_context().get("triggering_asset_events") or {}
            return changed_tables(events, policy)

        DeltaPolicyRunOperator.partial(
            task_id="run",
            policy=policy,
            map_index_template="{{ task.table['name'] }}",
            **work_args,
        ).expand(table=tables())
    return dag
