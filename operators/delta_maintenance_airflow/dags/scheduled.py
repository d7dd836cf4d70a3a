"""The Dag that maintains all tables of a policy on a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param

from delta_maintenance_airflow.notifications import ApprovalNotifier, MaintenanceSummaryNotifier
from delta_maintenance_airflow.operators.approvals import (
    DeltaApprovalsOperator,
    DeltaApprovedRunOperator,
    DeltaPendingPlansOperator,
)
from delta_maintenance_airflow.operators.policy import DeltaAssessOperator, DeltaPolicyRunOperator
from delta_maintenance_airflow.operators.select_tables import (
    DeltaFindTablesOperator,
    DeltaSelectWorkOperator,
)
from delta_maintenance_airflow.operators.summary import DeltaSummaryOperator

START = datetime(2026, 1, 1)
TAGS = ["delta", "maintenance"]
_DOCUMENTATION = """### Maintenance of all Delta tables of a policy

1. **find_tables** lists the patterns of the policy, and puts the tables that were assessed longest
   ago first. A pattern that cannot be listed fails alone;
2. **assess** looks what is due, from the logs of the tables alone, many tables in each task;
3. **tables_with_work** chooses those on which something is due, the ones maintained longest ago
   first. What is more than one run takes waits for the next run, where it comes first;
4. **run** does what is due, one task for each table with work, in order, within the hours and the
   limits of the policy;
5. **summary** says what was done, what waits for the next run, and what needs somebody;
6. **pending_plans** collects the plans for which the policy wants an approval. Plans that change
   nothing are not among them, and without any plan the next two tasks are skipped;
7. **approve** shows all of them in one question, and waits for an answer under *Required Actions*:
   choose plans, and approve, reject or snooze them. Later runs go on meanwhile; they do not ask
   again before this question is answered;
8. **run_approved** carries out what was approved, exactly as it was shown, one task for each table.

A table that fails holds up no other; its task fails, and so does the summary. A table that another
Dag is at work on is skipped until the next run. Nothing due is a normal answer: then nothing is
run, and no table costs a task.

Running this twice, stopping it half-way or clearing any of its tasks does no harm.
"""


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """How much one run of the scheduled Dag takes on."""

    tables_per_assess_task: int = 50
    """How many tables one task assesses."""
    tables_per_run: int = 1_000
    """How many tables with work one run takes; Airflow's `[core] max_map_length` is a limit too."""
    tables_at_once: int = 8
    """How many tasks of a kind run at a time."""
    plans_per_approval: int = 100
    """How many plans one question shows."""
    approval_timeout: timedelta = timedelta(hours=24)
    """How long a question stays open. The next run after that asks again."""


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
        description="Does what is due on the Delta tables of a policy.",
        doc_md=_DOCUMENTATION,
        schedule=schedule,
        start_date=START,
        catchup=False,
        # One that is at work, and one that waits for its approvals.
        max_active_runs=2,
        default_args=dict(default_args),
        # Parameters keep their types on the way into the tasks.
        render_template_as_native_obj=True,
        tags=TAGS,
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
            assessed=assess.output,  # type: ignore[arg-type]
            most=limits.tables_per_run,
            # A batch that could not be assessed holds up no other.
            trigger_rule="all_done",
        )
        run = DeltaPolicyRunOperator.partial(
            task_id="run",
            policy=policy,
            plan_only="{{ params.plan_only }}",
            map_index_template="{{ task.table['name'] }}",
            **at_once,
        ).expand(table=select.output)
        summary = DeltaSummaryOperator(
            task_id="summary",
            find_task="find_tables",
            assess_task="assess",
            select_task="tables_with_work",
            run_task="run",
            trigger_rule="all_done",
            retries=0,
            on_success_callback=MaintenanceSummaryNotifier(),
            on_failure_callback=MaintenanceSummaryNotifier(),
        )
        run >> summary
        pending = DeltaPendingPlansOperator(
            task_id="pending_plans",
            assess_task="assess",
            run_task="run",
            approve_task="approve",
            most=limits.plans_per_approval,
            plan_only="{{ params.plan_only }}",
            # A table that failed holds up the approvals of no other.
            trigger_rule="all_done",
        )
        # An answer that comes before Airflow 3.3 has seen the end of the asking process fails the
        # try, and the next one asks again.
        approve = DeltaApprovalsOperator(
            task_id="approve",
            plans=pending.output,  # type: ignore[arg-type]
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
