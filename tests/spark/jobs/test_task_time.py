"""The time of Spark's tasks comes home with the result, and is in the ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from delta_maintenance import DeltaTable, clock, open_table
from delta_maintenance.ledger import LedgerTable
from delta_maintenance.ledger.rows import Origin, rows_of
from delta_maintenance.policies import RunEnvironment
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.policies.run import run
from delta_maintenance.spark import TaskTime, job
from delta_maintenance.storage import open_store
from delta_maintenance.submission import JobReport, JobSpec
from tests.support.tables.overdue_tables import overdue_table

pytestmark = pytest.mark.spark


def test_it_is_the_time_of_tasks_and_not_of_the_session(spark: SparkSession) -> None:
    idle = TaskTime(spark)
    time.sleep(0.2)
    assert idle.seconds == 0.0
    busy = TaskTime(spark)
    spark.sparkContext.parallelize(range(4), 4).foreach(lambda _: time.sleep(0.5))
    found = busy.seconds
    # Starting Python on the executors is part of the first tasks.
    assert found is not None and 2.0 <= found < 30.0
    spark.sparkContext.parallelize(range(4), 4).foreach(lambda _: time.sleep(0.5))
    assert busy.seconds is not None and busy.seconds >= found + 2.0


def test_rows_of_jobs_have_it_and_other_rows_do_not(spark: SparkSession, tmp_path: Path) -> None:
    jobs: list[float] = []

    def submit(table: Any, due: Any, *, plan_only: bool = False, **_: Any) -> Mapping[str, Any]:
        spec = JobSpec(
            operation=due.operation,
            table=table.uri,
            options=due.options.to_json(),
            plan_only=plan_only,
        )
        report = JobReport.from_json(job.report_of(spec, spark).to_json())
        assert report.task_seconds is not None
        jobs.append(report.task_seconds)
        return report.timed_result_or_raise()

    for options in ({"engine": "spark"}, {"engine": "local"}):
        folder = str(tmp_path / options["engine"])
        overdue_table(Path(folder))
        ended = run_operation(
            open_table(folder),
            Policy(version=1).table_at(folder),
            "vacuum",
            options=options,
            environment=RunEnvironment(submit=submit),
        )
        assert (ended.status, len(jobs)) == ("done", 1), ended.problem
        (row,) = rows_of(ended, Origin(done_by="cli", run_id="r")).to_pylist()
        assert row["engine"] == options["engine"]
        assert row["spark_task_seconds"] == (jobs[0] if options["engine"] == "spark" else None)
    assert jobs[0] > 0


def test_the_plan_and_the_result_of_a_policy_count_together(tmp_path: Path) -> None:
    overdue_table(tmp_path)
    rules = {"vacuum": {"every": "1 day"}, "limits": {"max_deleted_files": 9}}
    rules |= {"engine": {"prefer": "spark"}}
    document = {"version": 1, "defaults": rules, "tables": [{"uri": str(tmp_path)}]}
    (table,) = Policy.model_validate(document).named_tables

    def submit(table: Any, due: Any, *, plan_only: bool = False, **_: Any) -> Mapping[str, Any]:
        options = {**due.options.to_json(), "engine": "local"}
        spec = JobSpec(
            operation=due.operation, table=table.uri, options=options, plan_only=plan_only
        )
        report = job.report_of(spec, cast(SparkSession, None))
        assert report.task_seconds is None
        return replace(report, task_seconds=1.5).timed_result_or_raise()

    ended = run(open_table(str(tmp_path)), table, environment=RunEnvironment(submit=submit))
    assert [each.status for each in ended.outcomes] == ["done"], ended.problem
    (cost,) = (each.cost for each in ended.outcomes)
    assert cost is not None and cost.spark_task_seconds == 3.0


def test_an_operation_in_a_session_of_a_notebook_has_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    overdue_table(tmp_path / "t")
    table = DeltaTable(tmp_path / "t", spark=spark, ledger=tmp_path / "ledger")
    table.vacuum(engine="spark")
    (row,) = (
        LedgerTable(open_store(str(tmp_path / "ledger")))
        .read(("spark_task_seconds", "engine", "started_at"))
        .to_pylist()
    )
    assert row["engine"] == "spark" and row["spark_task_seconds"] > 0
    assert row["started_at"] <= clock.now()
