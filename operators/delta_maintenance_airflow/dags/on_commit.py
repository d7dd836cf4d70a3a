"""The Dag that runs when there are commits to the tables of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, AssetAny, get_current_context, get_parsing_context, task

from delta_maintenance_airflow.dags.scheduled import START, TAGS
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from delta_maintenance_airflow.policy_assets import changed_tables, watched_assets

_DOCUMENTATION = """### Maintenance of Delta tables when they change

Runs when there are new commits to tables that the policy names by address or takes from a catalog.
For each changed table, the operations that are due by its policy run at once instead of with the
next scheduled run.
Maintenance commits do not start a run: neither those of this package, nor OPTIMIZE, VACUUM and
similar ones of other engines.

The triggerer polls the log of each table every 30 seconds, with one or two requests. One trigger
watches all tables of a store, or of a catalog, which is listed every five minutes. Airflow stores
its position, so that no commit is missed after a restart.

Tables that only patterns find are maintained by the scheduled Dag. Both Dags can be active: only
one of them works on a table at a time.
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
    # Tasks need no schedule, and reading the policy takes longer than all else in this file.
    is_for_task = get_parsing_context().task_id is not None
    assets = [] if is_for_task else watched_assets(policy, min_commits=min_commits)
    with DAG(
        dag_id=dag_id,
        description="Runs the operations that are due on a Delta table of the policy after "
        "it has changed.",
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
            task_id="run", policy=policy, map_index_template="{{ task.table['name'] }}", **work_args
        ).expand(table=tables())
    return dag
