"""Tasks of every operator, each in its own DagRun."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Param

from tests.support.orchestrators.operator_cases import CASES, Case

START = datetime(2026, 1, 1, tzinfo=UTC)
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.verb)


def task(case: Case, *, name: str | None = None, **arguments: Any) -> Any:
    """Creates a task on the table with its name, below the parameter `root`."""
    given = {"table_uri": f"{{{{ params.root }}}}/{case.verb}", **case.arguments, **arguments}
    return case.operator(task_id=(name or case.verb).replace("-", "_"), **given)


def dag_of(
    root: Path, *tasks: Callable[[], Any], name: str = "every_operator", **options: Any
) -> DAG:
    """Dags of other tasks need other names: the server that Airflow 3.1 shares between the runs of
    a process keeps a Dag by its version, which stays the same until the Dag has run."""
    with DAG(
        name,
        schedule=None,
        start_date=START,
        render_template_as_native_obj=True,
        default_args={"retries": 1, "retry_delay": timedelta(0)},
        params={
            "root": Param(str(root), type="string"),
            "plan_only": Param(False, type="boolean"),
            "feature": Param("deletionVectors", type="string"),
        },
        **options,
    ) as dag:
        for make in tasks:
            make()
    return dag
