"""The Dag for manual runs of one operation on some tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task, task_group

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.given_options import check_options, without_empty
from delta_maintenance.operations.core.registry import find, operations
from delta_maintenance_airflow.compat import AirflowFailException
from delta_maintenance_airflow.dags.scheduled import START, TAGS
from delta_maintenance_airflow.operators.manual import DeltaApprovalOperator, DeltaManualOperator

MANUAL_TAG = "delta-manual"
"""The tag by which the health page finds the Dags for manual runs."""
SHORT_TAG = "short-retention"
"""The tag of those whose options may shorten a retention."""
_DOCUMENTATION = """### Manual run of one operation on Delta tables

Fill in the form: an operation, the tables, and options that differ from those of the policy. *Run…*
under *Browse > Delta tables* has a field for every option of the operation instead of JSON, and
shows the plan first.

The task **tables** refuses unknown options and values that are not allowed. Then, for each table
separately:

1. **plan** shows what would be done, and why. Nothing is changed.
2. **approve** shows the plan and waits for an approval, if the plan deletes or repairs something,
   raises the protocol or drops a feature, or if the policy requires it. After a day without an
   answer, the plan counts as rejected.
3. **run** plans again, and carries out what was approved. If the table has changed in a way that
   changes the plan, the task fails and changes nothing.

Retentions are those of the table, or longer. Only the Dag that `DagIds(short_retention=...)` adds
accepts the two flags that shorten a retention. The tables must be tables of the policy, unless
`[delta_maintenance] any_address` is set.

With `"truncate_history": true`, dropping a feature may take a second run. The first one then
succeeds as `incomplete`, and states the time from which the second run can drop the feature.

"""

_FIRST: Mapping[str, Any] = {"priority_weight": 1_000, "weight_rule": "absolute"}
"""A person waits for the outcome: queued tasks of this Dag begin before those of scheduled Dags."""


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
        description="Plans one operation on Delta tables, asks for approval, and applies the plan.",
        doc_md=f"{_DOCUMENTATION}{required_options()}",
        schedule=None,
        start_date=START,
        default_args={**_FIRST, **default_args},
        # Parameters keep their types when they are passed to tasks.
        render_template_as_native_obj=True,
        tags=[*TAGS, MANUAL_TAG, *([SHORT_TAG] if short_retention else [])],
        params={
            "operation": Param(
                "checkpoint", enum=list(offered), values_display=offered, title="Operation"
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
                description="Addresses, or the names of tables in the policy.",
            ),
            "options": Param(
                {},
                type="object",
                title="Options",
                # One parameter for each option of each operation would be several hundred, and
                # every run would store the defaults of all of them.
                description="Fields of the operation's options, which override the policy: "
                f'`{{"retention": "30 days"}}`. {required_options()} The form under *Browse > '
                "Delta tables* has a field for each.",
            ),
            "plan_only": Param(
                False,
                type="boolean",
                title="Plan only",
                description="Show what would be done, and why, and stop there.",
            ),
        },
    ) as dag:

        @task
        def tables() -> list[dict[str, Any]]:
            """The tables that the form names, once its options are known to be possible."""
            params = get_current_context()["params"]
            try:
                check_options(find(params["operation"]), without_empty(params["options"]))
            except InvalidRequestError as error:
                raise AirflowFailException(str(error)) from None
            addresses = [params["table_uri"], *params["tables"]]
            entries = [
                {"uri": text} if "/" in text else {"name": text}
                for text in dict.fromkeys(filter(None, addresses))
            ]
            if not entries:
                raise AirflowFailException("name a table in the form")
            return entries

        @task_group
        def one_table(table: dict[str, Any]) -> None:
            """A task group per table, so that a rejection for one table does not affect others."""
            request: dict[str, Any] = {
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
                **request,
                **work_args,
            )
            planned: Any = plan.output
            # Before Airflow 3.3, an answer that arrives before the asking process has ended fails
            # the task. The answer is kept, so the question is asked again at once.
            approve = DeltaApprovalOperator(
                task_id="approve", plan=planned, retries=5, retry_delay=timedelta(seconds=5)
            )
            approved: Any = approve.output
            run = DeltaManualOperator(
                task_id="run", plan=planned, approval=approved, **request, **work_args
            )
            plan >> approve >> run

        one_table.expand(table=tables())
    return dag


def titles() -> dict[str, str]:
    """Returns the title of each operation by its name, with a warning if it deletes files."""
    return {
        record.name: f"{record.title} (deletes)" if record.effects.deletes else record.title
        for record in operations()
    }


def required_options() -> str:
    """Returns a sentence that names the options without which an operation cannot run."""
    needed = [
        f"`{record.name}` needs `{json.dumps(record.example)}`"
        for record in operations()
        if record.must_set
    ]
    return f"{', '.join(needed)}." if needed else "No operation needs options."
