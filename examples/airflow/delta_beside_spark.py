"""### Spark and maintenance take turns on one table on S3

Without the log store of this package, Delta Spark can overwrite commits of other writers on S3.
Here they never commit at the same time:

1. Every task that commits to the table is in the pool `writers_of_events`, which has **one slot**:

       airflow pools set writers_of_events 1 "Tasks that commit to s3://lake/events"

2. **write_events** stands for your Spark jobs. Put the same pool on each of them, in all Dags. They
   update the asset of the table.
3. **optimize_events** runs after each update of the asset, in the same pool.

Because the pool keeps other writers away, no quiet window is needed: `quiet` is zero. Each commit
is still guarded, so that a writer outside of the pool is noticed.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset, task

from delta_maintenance_airflow.operators import DeltaOptimizeOperator

TABLE = "s3://lake/events"
EVENTS = Asset(name="events", uri=TABLE)
POOL = "writers_of_events"

with DAG(
    dag_id="write_events",
    description="Stands for the Spark jobs that write the table.",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    tags=["delta"],
):

    @task(pool=POOL, outlets=[EVENTS])
    def append() -> None:
        """Replace this by the operator of your Spark job."""

    append()

with DAG(
    dag_id="optimize_events",
    description="Merges small files after each write, while no Spark job commits.",
    doc_md=__doc__,
    schedule=[EVENTS],
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    tags=["delta", "maintenance"],
):
    DeltaOptimizeOperator(
        task_id="optimize",
        table_uri=TABLE,
        delta_conn_id="lake",
        options={"other_writers": "spark", "quiet": timedelta(0)},
        pool=POOL,
    )
