"""### Maintenance of all Delta tables of the policy

Every hour, for every table that the policy names or finds:

1. **assess** looks what is due, from the table's log alone;
2. **run** does it, one task per table with work: what is due, in order, within the hours and the
   limits of the policy. What the policy wants approved is left to the Dag `delta_manual`;
3. **summary** says what was done on how many tables, and which need somebody.

The policy is the file that `[delta_maintenance] policy` names in Airflow's configuration. A table
that fails holds up no other; its task fails, and so does the summary. A table that another Dag is
at work on is skipped until the next hour. Nothing due is a normal answer: then nothing is run.

Running this twice, stopping it half-way or clearing any of its tasks does no harm.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task

from delta_maintenance_airflow.notifications import MaintenanceSummaryNotifier
from delta_maintenance_airflow.operators.policy import DeltaAssessOperator, DeltaPolicyRunOperator
from delta_maintenance_airflow.policy_work import PolicyWork
from delta_maintenance_airflow.summary import concluded, summarised

TABLES_PER_TASK = 50
MOST_TABLES_PER_RUN = 1000
"""Airflow maps a task over 1,024 values at most; what is over waits for the next run."""

# The file has another name than its Dag: it must not pass for the package `delta_maintenance`.
with DAG(
    dag_id="delta_maintenance",
    description="Does what is due on the Delta tables of the policy.",
    doc_md=__doc__,
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=2)},
    # Parameters keep their types on the way into the tasks.
    render_template_as_native_obj=True,
    tags=["delta", "maintenance"],
    params={
        "tables": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Only these tables",
            description="Names or addresses of the policy's tables; none stands for all.",
        ),
        "plan_only": Param(
            False,
            type="boolean",
            title="Plan only",
            description="Say what would be done on each table, and why.",
        ),
    },
) as dag:

    @task
    def find_tables() -> list[list[dict[str, str]]]:
        """The tables of the policy, some for each task that assesses."""
        wanted = set(get_current_context()["params"]["tables"])
        found = [
            table
            for table in PolicyWork(None).find_tables()
            if not wanted or wanted.intersection(table.values())
        ]
        return [
            found[first : first + TABLES_PER_TASK]
            for first in range(0, len(found), TABLES_PER_TASK)
        ]

    @task
    def tables_with_work(assessed: Any) -> list[dict[str, Any]]:
        """The tables on which something is due, or that cannot be looked at."""
        found = [table for tables in assessed for table in tables]
        return found[:MOST_TABLES_PER_RUN]

    @task(
        trigger_rule="all_done",
        retries=0,
        on_success_callback=MaintenanceSummaryNotifier(),
        on_failure_callback=MaintenanceSummaryNotifier(),
    )
    def summary(work: Any) -> dict[str, Any]:
        """What was done; fails where a table could not be finished."""
        context = get_current_context()
        return concluded(context, summarised(context, work or [], run_task="run"))

    assess = DeltaAssessOperator.partial(task_id="assess").expand(tables=find_tables())
    work = tables_with_work(assess.output)
    run = DeltaPolicyRunOperator.partial(
        task_id="run",
        plan_only="{{ params.plan_only }}",
        max_active_tis_per_dagrun=8,
        map_index_template="{{ task.table['name'] }}",
    ).expand(table=work)
    run >> summary(work)
