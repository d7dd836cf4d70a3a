"""The Dag that runs one operation on some tables because somebody asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task, task_group

from delta_maintenance_airflow.compat import AirflowFailException
from delta_maintenance_airflow.dags.scheduled import START, TAGS
from delta_maintenance_airflow.manual_form import required_options, titles
from delta_maintenance_airflow.operators.by_hand import DeltaApprovalOperator, DeltaManualOperator

_DOCUMENTATION = """### One operation on Delta tables, by hand

Fill in the form: an operation, the tables, and options if those of the policy will not do. For each
table on its own:

1. **plan** says what would be done, and why; nothing is changed;
2. **approve** shows the plan and waits for a yes, where something would be deleted or repaired, the
   protocol raised or a feature taken out of it, or where the policy asks for it. No answer within a
   day is a no;
3. **run** plans anew, and carries out what was approved; where the table has moved in a way that
   changes the plan, it fails and changes nothing.

Retentions are those of the table, or longer. The two flags that make one shorter are refused, but
for the Dag that `DagIds(short_retention=...)` adds. The tables are those of the
policy, unless `[delta_maintenance] any_address` is set.

With `"truncate_history": true`, dropping a feature may take a second run: the first one then ends
well, as `incomplete`, and says from when on the other can drop it.

"""


def manual_dag(
    *,
    dag_id: str,
    policy: str | None,
    default_args: Mapping[str, Any],
    work_args: Mapping[str, Any],
    short_retention: bool = False,
) -> DAG:
    """The Dag; see `delta_maintenance_dags`."""
    offered = titles()
    with DAG(
        dag_id=dag_id,
        description="Plans one operation on Delta tables, has it approved, and carries it out.",
        doc_md=f"{_DOCUMENTATION}{required_options()}",
        schedule=None,
        start_date=START,
        default_args=dict(default_args),
        # Parameters keep their types on the way into the tasks.
        render_template_as_native_obj=True,
        tags=TAGS,
        params={
            "operation": Param(
                "checkpoint",
                enum=list(offered),
                values_display=offered,
                title="Operation",
            ),
            "table_uri": Param(
                None,
                type=["string", "null"],
                title="Table",
                description="Its address, such as s3://lake/events or /srv/tables/users.",
            ),
            "tables": Param(
                [],
                type="array",
                items={"type": "string"},
                title="Or several tables",
                description="Addresses, or names that the policy has for them.",
            ),
            "options": Param(
                {},
                type="object",
                title="Options",
                description="Fields of the operation's options, over what the policy says: "
                f'{{"retention": "P30D"}}. {required_options()}',
            ),
            "plan_only": Param(
                False,
                type="boolean",
                title="Plan only",
                description="Say what would be done, and why, and end there.",
            ),
        },
    ) as dag:

        @task
        def tables() -> list[dict[str, Any]]:
            """What the form names."""
            params = get_current_context()["params"]
            named = [params["table_uri"], *params["tables"]]
            found = [
                {"uri": text} if "/" in text else {"name": text}
                for text in dict.fromkeys(filter(None, named))
            ]
            if not found:
                raise AirflowFailException("name a table in the form")
            return found

        @task_group
        def one_table(table: dict[str, Any]) -> None:
            """Each table on its own: a no for one of them is none for the others."""
            asked: dict[str, Any] = {
                "table": table,
                "operation": "{{ params.operation }}",
                "options": "{{ params.options }}",
                "policy": policy,
                "short_retention": short_retention,
            }
            plan = DeltaManualOperator(
                task_id="plan",
                plan_only=True,
                stop_after_plan="{{ params.plan_only }}",
                **asked,
                **work_args,
            )
            planned: Any = plan.output
            # An answer that comes before Airflow 3.3 has seen the end of the asking process fails
            # the task; whoever answered is still there, and is asked again at once.
            approve = DeltaApprovalOperator(
                task_id="approve", plan=planned, retries=5, retry_delay=timedelta(seconds=5)
            )
            approved: Any = approve.output
            run = DeltaManualOperator(
                task_id="run", plan=planned, approval=approved, **asked, **work_args
            )
            plan >> approve >> run

        one_table.expand(table=tables())
    return dag
