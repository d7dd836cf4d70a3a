"""Tries of a deferred task that are killed: the work of a process, below a folder of its own."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import yaml

from delta_maintenance.testing.actions import add, features, metadata
from delta_maintenance.testing.table_builder import TableBuilder
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from tests.support.orchestrators.airflow_versions import TaskDeferred
from tests.support.orchestrators.fake_spark import FakeSpark, reports

_RESULT = {"table": "t", "version": 9, "status": "written"}


def build(root: Path) -> FakeSpark:
    """Creates a table, its policy, whose work is a Spark job, and a `spark-submit`."""
    for name in ("tmp", "reports", "kept"):
        (root / name).mkdir(parents=True)
    table = TableBuilder(root / "table")
    table.commit([features("v2Checkpoint"), metadata()])
    for number in range(8):
        table.commit([add(f"{number}.parquet")])
    rules = {"compact_log": {"commits_per_file": 5}, "engine": {"prefer": "spark"}}
    entry = {"name": "t", "uri": str(root / "table"), **rules}
    (root / "policy.yaml").write_text(yaml.safe_dump({"version": 1, "tables": [entry]}))
    spark = FakeSpark(root)
    spark.acts(reports({"status": "done", "result": _RESULT}))
    return spark


def environment(root: Path) -> dict[str, str]:
    """The variables with which a process works below the folder."""
    section = "AIRFLOW__DELTA_MAINTENANCE__"
    return {
        "TMPDIR": str(root / "tmp"),
        "PATH": f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        f"{section}ASSESSMENTS": str(root / "kept"),
        f"{section}POLICY": str(root / "policy.yaml"),
        f"{section}REPORT_FOLDER": str(root / "reports"),
    }


def task() -> DeltaPolicyRunOperator:
    return DeltaPolicyRunOperator(task_id="run", table={"name": "t"}, deferrable=True)


def context() -> dict[str, Any]:
    """The same in each try, as far as the operator reads it."""
    ti = MagicMock(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0)
    dag_run = SimpleNamespace(run_after=datetime(2026, 1, 1, tzinfo=UTC))
    return {"outlet_events": {}, "ti": ti, "dag_run": dag_run, "params": {}}


def first_try(root: str) -> None:
    """Submits the job, and is deferred."""
    _settle(Path(root))
    try:
        task().execute(context())
    except TaskDeferred:
        return
    raise AssertionError("the task was not deferred")


def resumed_try(root: str) -> None:
    """Continues after the event in the folder."""
    _settle(Path(root))
    task().execute_complete(context(), json.loads(Path(root, "event.json").read_text()))


def _settle(root: Path) -> None:
    os.environ.update(environment(root))
    tempfile.tempdir = os.environ["TMPDIR"]
