"""### Checkpoints for Delta tables

This example writes a checkpoint of each table that has enough commits since its last one.

**Scheduled runs** (hourly) read the tables from the Airflow Variable `delta_checkpoint_tables`: a
JSON list of addresses, such as `["s3://lake/events", "/srv/tables/users"]`. A sensor counts the
commits since the last checkpoint of each table. Tables with fewer than `min_commits` are skipped.

**Manual runs** write a checkpoint of one table: trigger the Dag with its address. *Plan only* logs
the plan and its reasons, and writes nothing.

A checkpoint adds no version and deletes no file, and it is read back before readers can see it. The
Dag may therefore run twice or be stopped at any time. It takes no lease.

With the engine `spark`, the job uses the connection `spark_default`. If the worker has no
credentials for the store, choose a connection of the type *Delta Lake* as *Storage connection*.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Param, Variable, get_current_context, task, task_group

from delta_maintenance_airflow.operators import DeltaCheckpointOperator
from delta_maintenance_airflow.sensors import DeltaCommitSensor

TABLES = "delta_checkpoint_tables"

with DAG(
    dag_id="delta_checkpoint",
    description="Checkpoints the Delta tables that need one.",
    doc_md=__doc__,
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    # One run at a time: two would do the same work, though no harm.
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=2)},
    # Parameters keep their types on the way into the tasks.
    render_template_as_native_obj=True,
    tags=["delta", "maintenance"],
    params={
        "table_uri": Param(
            None,
            type=["string", "null"],
            title="Table",
            description=f"Address of one table; without it, those of the Variable {TABLES}.",
        ),
        "min_commits": Param(
            100,
            type="integer",
            minimum=0,
            title="Commits since the last checkpoint",
            description="With fewer a table is skipped. One given by hand never is.",
        ),
        "kind": Param(
            "auto",
            enum=["auto", "classic", "v2-classic", "v2-json", "v2-parquet"],
            title="Kind of checkpoint",
            description="auto follows the table's delta.checkpointPolicy.",
        ),
        "actions_per_sidecar": Param(
            50_000,
            type="integer",
            minimum=0,
            title="Actions per sidecar",
            description="Of V2 checkpoints, at most; 0 keeps all actions in the top-level file.",
        ),
        "incremental": Param(
            "auto",
            enum=["auto", "never", "always"],
            title="Take over sidecars",
            description="Of V2 checkpoints: auto takes over sidecars of the newest checkpoint if "
            "that writes less.",
        ),
        "engine": Param(
            "auto",
            enum=["auto", "local", "spark"],
            title="Engine",
            description="auto submits a Spark job for large logs only.",
        ),
        "plan_only": Param(
            False,
            type="boolean",
            title="Plan only",
            description="Say what would be written, and why.",
        ),
        "delta_conn_id": Param(
            None,
            type=["string", "null"],
            title="Storage connection",
            description="Only where the worker has no access to the tables of its own.",
        ),
    },
) as dag:

    @task
    def tables() -> list[str]:
        """The addresses of the tables that this run is about."""
        given = get_current_context()["params"]["table_uri"]
        if given:
            return [given]
        return list(Variable.get(TABLES, default=[], deserialize_json=True))

    @task_group
    def one_table(table_uri: str) -> None:
        """Each table on its own: one that is broken, or has nothing new, holds up no other."""
        enough_commits = DeltaCommitSensor(
            task_id="enough_commits",
            table_uri=table_uri,
            # Who asks for one table by hand wants it now.
            min_commits_since_checkpoint="{{ 0 if params.table_uri else params.min_commits }}",
            delta_conn_id="{{ params.delta_conn_id }}",
            # One look, the next run has another: a run that waits would hold up those by hand.
            timeout=0,
            soft_fail=True,
        )
        checkpoint = DeltaCheckpointOperator(
            task_id="checkpoint",
            table_uri=table_uri,
            options={
                "kind": "{{ params.kind }}",
                "actions_per_sidecar": "{{ params.actions_per_sidecar }}",
                "incremental": "{{ params.incremental }}",
            },
            engine="{{ params.engine }}",
            plan_only="{{ params.plan_only }}",
            delta_conn_id="{{ params.delta_conn_id }}",
            max_active_tis_per_dag=2,
            map_index_template="{{ task.table_uri }}",
        )
        enough_commits >> checkpoint

    one_table.expand(table_uri=tables())
