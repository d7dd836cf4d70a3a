"""### Operators between TaskFlow functions

The return value of an operator is a plain dictionary, so a `@task` function can take it, and an
operator can take the return value of a function.

1. **choose** returns the options of the vacuum.
2. **vacuum** plans with these options.
3. **report** takes the plan and logs the bytes that a vacuum would free.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, Param, task

from delta_maintenance_airflow.operators import DeltaVacuumOperator

with DAG(
    dag_id="delta_taskflow",
    description="Plans a vacuum between two functions.",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    tags=["delta", "maintenance"],
    params={"table_uri": Param(type="string", minLength=1, title="Table")},
) as dag:

    @task
    def choose() -> dict[str, Any]:
        """The options of the vacuum."""
        return {"retention": "P14D"}

    @task
    def report(plan: dict[str, Any]) -> int:
        """Logs what the plan would free, and returns the number of bytes."""
        logging.getLogger(__name__).info("%s: %d files", plan["table"], plan["files"])
        return int(plan["bytes"])

    vacuum = DeltaVacuumOperator(
        task_id="vacuum", table_uri="{{ params.table_uri }}", options=choose(), plan_only=True
    )
    report(vacuum.output)
