"""### Manual maintenance of one Delta table

Trigger this example with the address of a table. Its tasks, in this order:

1. **checkpoint** writes a checkpoint if the table has enough commits since the last one.
2. **compact_log** writes log compactions of the commits after the newest checkpoint.
3. **clean_log** deletes log files older than the log retention of the table.
4. **vacuum** deletes files that no retained version of the table needs.

The first two delete nothing. The last two only log what they would delete and why, unless
*Only plan deletions* is switched off. The reports list each file. The retentions are those of the
table.

Other writers may commit at the same time. The Dag may run twice or be stopped at any time. It takes
no lease and asks for no approval.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Param

from delta_maintenance_airflow.operators import (
    DeltaCheckpointOperator,
    DeltaCleanLogOperator,
    DeltaCompactLogOperator,
    DeltaVacuumOperator,
)
from delta_maintenance_airflow.sensors import DeltaCommitSensor

TABLE = {"table_uri": "{{ params.table_uri }}", "delta_conn_id": "{{ params.delta_conn_id }}"}
DELETION = {"plan_only": "{{ params.plan_only }}", "report_uri": "{{ params.report_uri }}"}

with DAG(
    dag_id="delta_upkeep",
    description="Checkpoints, compacts, cleans up and vacuums one Delta table.",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=2)},
    # Parameters keep their types on the way into the tasks.
    render_template_as_native_obj=True,
    tags=["delta", "maintenance"],
    params={
        "table_uri": Param(
            type="string",
            minLength=1,
            title="Table",
            description="Its address, such as s3://lake/events or /srv/tables/users.",
        ),
        "plan_only": Param(
            True,
            type="boolean",
            title="Only plan deletions",
            description="Say what clean_log and vacuum would delete, and why; delete nothing.",
        ),
        "report_uri": Param(
            None,
            type=["string", "null"],
            title="Reports",
            description="A folder outside the table, with / at its end, for the lists of files.",
        ),
        "min_commits": Param(
            100,
            type="integer",
            minimum=0,
            title="Commits since the last checkpoint",
            description="With fewer no checkpoint is written.",
        ),
        "commits_per_file": Param(
            10,
            type="integer",
            minimum=2,
            title="Commits per log compaction",
            description="How many commits one compaction stands for.",
        ),
        "delta_conn_id": Param(
            None,
            type=["string", "null"],
            title="Storage connection",
            description="Only where the worker has no access to the table of its own.",
        ),
    },
) as dag:
    enough_commits = DeltaCommitSensor(
        task_id="enough_commits",
        min_commits_since_checkpoint="{{ params.min_commits }}",
        # One look: what is not due is skipped.
        timeout=0,
        soft_fail=True,
        **TABLE,
    )
    checkpoint = DeltaCheckpointOperator(task_id="checkpoint", **TABLE)
    compact_log = DeltaCompactLogOperator(
        task_id="compact_log",
        options={"commits_per_file": "{{ params.commits_per_file }}"},
        # Also where no checkpoint was due.
        trigger_rule="none_failed",
        **TABLE,
    )
    clean_log = DeltaCleanLogOperator(task_id="clean_log", **TABLE, **DELETION)
    vacuum = DeltaVacuumOperator(task_id="vacuum", **TABLE, **DELETION)

    enough_commits >> checkpoint >> compact_log >> clean_log >> vacuum
