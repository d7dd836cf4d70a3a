"""The example `delta_taskflow`, run by Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.orchestrators.airflow_versions import DagBag
from tests.support.tables.overdue_tables import overdue_table

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "airflow" / "delta_taskflow.py"

pytestmark = [
    pytest.mark.airflow,
    # Caused by the libraries of Airflow.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]


def test_functions_and_operators_pass_plain_values_to_each_other(
    airflow_db: None, run_dag: Callable[..., Any], tmp_path: Path
) -> None:
    table = overdue_table(tmp_path / "t")
    bag = DagBag(dag_folder=str(EXAMPLE))
    assert not bag.import_errors
    done = run_dag(bag.dags["delta_taskflow"], run_conf={"table_uri": table.store.root})
    told = {ti.task_id: ti.xcom_pull(ti.task_id) for ti in done.get_task_instances()}
    plan = told["vacuum"]
    assert type(plan) is dict and plan["status"] == "planned" and plan["files"] == 1
    assert told["report"] == plan["bytes"] > 0
    # The retention that the function chose.
    assert "14 days" in plan["reason"] or "P14D" in str(plan)
    assert (tmp_path / "t/0.parquet").exists()
