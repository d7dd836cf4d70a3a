"""### Maintenance of Delta tables when they change

Woken by new commits to the tables that the policy names with their address: of each table that has
changed, what is due by its policy is done at once, instead of within the hour. Commits of
maintenance wake nobody, neither those of this package nor OPTIMIZE, VACUUM and the like of others.

The triggerer asks each table's log every 30 seconds for what is new, with one or two requests. What
it has told is remembered by Airflow: after a restart nothing is missed.

The policy is the file that `[delta_maintenance] policy` names in Airflow's configuration; without
one this Dag has nothing to wait for. Tables that are behind patterns are looked after by the
scheduled Dag `delta_maintenance` alone, which may stand beside this one: on each table one of them
is at work at a time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, AssetAny, get_current_context, task

from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from delta_maintenance_airflow.policy_assets import changed_tables, watched_assets

ASSETS = watched_assets()

with DAG(
    dag_id="delta_on_commit",
    description="Does what is due on a Delta table of the policy once it has changed.",
    doc_md=__doc__,
    schedule=AssetAny(*ASSETS) if ASSETS else None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=4,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["delta", "maintenance"],
) as dag:

    @task
    def tables() -> list[dict[str, Any]]:
        """The tables that have changed."""
        events = get_current_context().get("triggering_asset_events") or {}
        return changed_tables(events)

    DeltaPolicyRunOperator.partial(
        task_id="run",
        map_index_template="{{ task.table['name'] }}",
    ).expand(table=tables())
