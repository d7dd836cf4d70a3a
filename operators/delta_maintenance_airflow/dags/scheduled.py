"""The Dag that maintains all tables of a policy on a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param

from delta_maintenance_airflow.notifications import ApprovalNotifier, DeltaFailureNotifier
from delta_maintenance_airflow.operators.approvals import (
    DeltaApprovalsOperator,
    DeltaApprovedRunOperator,
    DeltaPendingPlansOperator,
)
from delta_maintenance_airflow.operators.batch_run import DeltaPolicyBatchOperator
from delta_maintenance_airflow.operators.batches import BatchLimits
from delta_maintenance_airflow.operators.policy import DeltaAssessOperator
from delta_maintenance_airflow.operators.scheduled import (
    DeltaFindTablesOperator,
    DeltaSelectWorkOperator,
    DeltaSummaryOperator,
)

START = datetime(2026, 1, 1)
TAGS = ["delta", "maintenance"]
_DOCUMENTATION = """### Maintenance of all Delta tables of a policy

1. **find_tables** lists the patterns of the policy, and puts the tables that were assessed longest
   ago first. A pattern that cannot be listed fails alone.
2. **assess** finds the operations that are due, from the logs of the tables alone, many tables in
   each task.
3. **tables_with_work** chooses the tables with due operations, those maintained longest ago first.
   Tables beyond the limit of one run come first in the next run. If the policy has a budget, it
   chooses the operations that save readers the most for what they cost; the log says why others
   wait.
4. **run** carries out the operations that are due, in order, within the hours and the limits of the
   policy. One task maintains many tables with small work, one after another; large work, and work
   for Spark, has a task for each table.
5. **summary** reports what was done, which tables wait for the next run, and which problems need
   attention.
6. **pending_plans** collects the plans for which the policy requires an approval. Plans that change
   nothing are left out. Without any plan, the next two tasks are skipped.
7. **approve** shows all plans in one question, and waits for an answer under *Required Actions*:
   choose plans, and approve, reject or snooze them. Later runs continue meanwhile, and do not ask
   again before this question is answered.
8. **run_approved** carries out exactly what was approved, one task for each table.

If a table fails, its task and the summary fail, and the other tables are not affected. Failures
that are acknowledged on the health page do not count. New failures are told to the owners of the
tables. A table on which another Dag works is skipped until the next run. Often nothing is due: then
no operation runs, and no table takes a task.

Running this twice, stopping it half-way or clearing any of its tasks does no harm.
"""


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """The limits of one run of the scheduled Dag."""

    tables_per_assess_task: int = 50
    """The number of tables that one task assesses."""
    tables_per_run: int = 1_000
    """The maximum number of tables with work in one run; Airflow's `[core] max_map_length` applies,
    too.
    """
    tables_at_once: int = 8
    """The number of tasks of one kind that run at the same time."""
    tables_per_run_task: int = 25
    """The maximum number of tables that one task maintains; 1 for a task for each table."""
    bytes_per_run_task: int = 256 << 20
    """The maximum number of bytes that these tables are expected to read. A table with more, or
    with work for Spark, has a task of its own.
    """
    time_per_run_task: timedelta = timedelta(minutes=5)
    """The maximum time that these tables are expected to take, by their last runs. A task that has
    worked for as long begins no further table, and leaves the others for the next run.
    """
    plans_per_approval: int = 100
    """The maximum number of plans in one question."""
    approval_timeout: timedelta = timedelta(hours=24)
    """The time for which a question is open. The next run after that asks again."""


def scheduled_dag(
    *,
    dag_id: str,
    policy: str | None,
    schedule: Any,
    default_args: Mapping[str, Any],
    work_args: Mapping[str, Any],
    limits: RunLimits,
) -> DAG:
    """The Dag; see `delta_maintenance_dags`."""
    at_once = {"max_active_tis_per_dag": limits.tables_at_once, **work_args}
    with DAG(
        dag_id=dag_id,
        description="Runs the operations that are due on the Delta tables of a policy.",
        doc_md=_DOCUMENTATION,
        schedule=schedule,
        start_date=START,
        catchup=False,
        # One run that works, and one that waits for approvals.
        max_active_runs=2,
        default_args=dict(default_args),
        # Parameters keep their types when they are passed to tasks.
        render_template_as_native_obj=True,
        tags=TAGS,
        params={
            "tables": Param(
                [],
                type="array",
                items={"type": "string"},
                title="Only these tables",
                description="Names or addresses of tables of the policy; empty for all.",
            ),
            "plan_only": Param(
                False,
                type="boolean",
                title="Plan only",
                description="Show what would be done on each table, and why.",
            ),
        },
    ) as dag:
        find = DeltaFindTablesOperator(
            task_id="find_tables",
            policy=policy,
            only="{{ params.tables }}",
            tables_per_batch=limits.tables_per_assess_task,
            work_tasks=("assess", "tables_with_work", "run"),
        )
        assess = DeltaAssessOperator.partial(
            task_id="assess",
            policy=policy,
            map_index_template="{{ task.tables[0]['name'] }} … {{ task.tables[-1]['name'] }}",
            **at_once,
        ).expand(tables=find.output)
        select = DeltaSelectWorkOperator(
            task_id="tables_with_work",
            policy=policy,
            assessed=assess.output,  # type: ignore[arg-type]  # rendered before use
            most=limits.tables_per_run,
            batches=BatchLimits(
                tables=limits.tables_per_run_task,
                bytes=limits.bytes_per_run_task,
                time=limits.time_per_run_task,
                at_once=limits.tables_at_once,
            ),
            # A batch that could not be assessed does not affect the others.
            trigger_rule="all_done",
        )
        run = DeltaPolicyBatchOperator.partial(
            task_id="run",
            policy=policy,
            plan_only="{{ params.plan_only }}",
            time_limit=limits.time_per_run_task,
            map_index_template="{{ task.tables[0]['name'] }}"
            "{{ ' … ' ~ task.tables[-1]['name'] if task.tables[1:] else '' }}",
            **at_once,
        ).expand(tables=select.output)
        summary = DeltaSummaryOperator(
            task_id="summary",
            find_task="find_tables",
            assess_task="assess",
            select_task="tables_with_work",
            run_task="run",
            trigger_rule="all_done",
            retries=0,
            on_success_callback=DeltaFailureNotifier(),
            on_failure_callback=DeltaFailureNotifier(),
        )
        run >> summary
        pending = DeltaPendingPlansOperator(
            task_id="pending_plans",
            assess_task="assess",
            run_task="run",
            approve_task="approve",
            most=limits.plans_per_approval,
            plan_only="{{ params.plan_only }}",
            # A failed table does not delay the approvals of others.
            trigger_rule="all_done",
        )
        # Before Airflow 3.3, an answer that arrives before the asking process has ended fails the
        # try, and the next try asks again.
        approve = DeltaApprovalsOperator(
            task_id="approve",
            plans=pending.output,  # type: ignore[arg-type]  # rendered before use
            response_timeout=limits.approval_timeout,
            notifiers=[ApprovalNotifier()],
            retries=5,
            retry_delay=timedelta(seconds=5),
        )
        run_approved = DeltaApprovedRunOperator.partial(
            task_id="run_approved",
            policy=policy,
            map_index_template="{{ task.table['name'] }}",
            **at_once,
        ).expand_kwargs(approve.output)
        run >> pending >> approve >> run_approved
    return dag
