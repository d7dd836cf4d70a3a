"""Tasks of the Dags of a policy that are deferred while a Spark job works."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError, StorageError
from delta_maintenance.operations.core.registry import find
from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore
from delta_maintenance.policies.definition.policy import Policy
from delta_maintenance.policies.leases import LIFE
from delta_maintenance.policies.models import AssessedOperation
from delta_maintenance.policies.run import failed_run
from delta_maintenance.testing.table_builder import TableBuilder
from delta_maintenance_airflow import tasks
from delta_maintenance_airflow.compat import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)
from delta_maintenance_airflow.operators.manual import DeltaManualOperator
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from delta_maintenance_airflow.policy_work import FinishedJob, PolicyWork, submitter
from delta_maintenance_airflow.spark.deferral import Deferral, DeferredJob, JobDeferredError
from tests.support.orchestrators.airflow_versions import TaskDeferred
from tests.support.orchestrators.deferrals import (
    LIVES,
    deferred,
    driver_of,
    event_of,
    is_clean,
    resumed,
)
from tests.support.orchestrators.fake_spark import FakeSpark, is_alive, reports, wait_for

pytest.importorskip("airflow.providers.apache.spark", reason="NO SPARK PROVIDER")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

Make = Callable[..., DeltaPolicyRunOperator]
DONE = {"table": "s3://lake/events", "version": 9}
COMPACTED = {"status": "done", "result": {**DONE, "status": "written"}}
VACUUMED = {"status": "done", "result": {**DONE, "status": "vacuumed"}}
BOTH = (
    "spec = json.load(open(words[words.index('--spec') + 1][1:]))",
    "if spec['operation'] == 'vacuum':",
    *(f"    {line}" for line in reports(VACUUMED).splitlines()),
    "else:",
    *(f"    {line}" for line in reports(COMPACTED).splitlines()),
)
"""A driver that plays either operation of the policy."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report folder."""
    (tmp_path / "reports").mkdir()
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__REPORT_FOLDER", str(tmp_path / "reports"))
    monkeypatch.setattr("delta_maintenance_airflow.triggers.spark_job.SECONDS_BETWEEN_POLLS", 0.1)
    return tmp_path / "reports"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of assessments and leases."""
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def make(
    neglected_table: TableBuilder,
    folder: Path,
    kept: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    """Makes a task for the neglected table, whose policy sends all work to Spark."""
    uri = str(tmp_path / "table")
    rules = {"compact_log": {"commits_per_file": 5}, "vacuum": True}
    policy = {
        "version": 1,
        "defaults": {**rules, "engine": {"prefer": "spark"}},
        "tables": [{"name": "t", "uri": uri}],
    }
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__POLICY", str(tmp_path / "policy.yaml"))

    def make(kind: Any = DeltaPolicyRunOperator, **more: Any) -> Any:
        more = {"deferrable": True, **more}
        return kind(task_id="run", table={"name": "t", "uri": uri}, **more)

    return make


def leases(kept: Path) -> list[Path]:
    return list(kept.glob("*.lease"))


def test_a_task_with_several_jobs_holds_no_worker_and_keeps_its_lease(
    spark: FakeSpark,
    task_context: dict[str, Any],
    make: Make,
    folder: Path,
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The lease of the task itself is no reason to wait.
    monkeypatch.setattr(tasks, "_END_OF_TRY", timedelta(days=1))
    spark.acts(*BOTH)
    first = deferred(make(), task_context)
    deferred_at = clock.now()
    driver_of(spark)
    [lease] = leases(kept)
    before = lease.read_bytes()
    with pytest.raises(TaskDeferred) as caught:
        resumed(make(), task_context, first)
    second = caught.value
    wait_for(lambda: len(spark.starts) == 2)
    assert leases(kept) == [lease] and lease.read_bytes() != before
    told = resumed(make(), task_context, second)
    assert told["operations"] == ["compact-log: done", "vacuum: done"]
    assert told["status"] == "done" and len(spark.starts) == 2
    assert leases(kept) == []
    entry: Any = AssessmentStore(str(kept)).named("t")
    assert [each.operation for each in entry.run.outcomes] == ["compact-log", "vacuum"]
    # One run from its beginning on, not another one after each job.
    assert entry.run.started_at < deferred_at
    wait_for(lambda: is_clean(folder))


def test_the_job_that_has_ended_answers_its_own_request_once(
    spark: FakeSpark, task_context: dict[str, Any], make: Make
) -> None:
    spark.acts(*BOTH)
    event = event_of(deferred(make(), task_context).trigger)
    submit = submitter(
        task_context,
        ["another task"],
        lambda submission: None,
        deferral=Deferral(required=True),
        finished=FinishedJob(
            job=DeferredJob(**event["job"]), event=event, operation="compact-log", plans=False
        ),
    )
    table = PolicyWork(None).table("t", None)

    def asked(operation: str) -> AssessedOperation:
        options = find(operation).options()
        return AssessedOperation(
            operation=operation, status="due", reason="", engine="spark", options=options
        )

    for operation, plan_only in (("vacuum", False), ("compact-log", True)):
        with pytest.raises(JobDeferredError):
            submit(table, asked(operation), plan_only=plan_only)
    assert submit(table, asked("compact-log")) == COMPACTED["result"]
    with pytest.raises(JobDeferredError):
        submit(table, asked("compact-log"))
    # Nobody waits for the last three, so their files stay.
    wait_for(lambda: len(spark.starts) == 4)


def test_a_user_ends_the_job_and_the_lease(
    spark: FakeSpark, task_context: dict[str, Any], make: Make, kept: Path
) -> None:
    spark.acts(LIVES)
    trigger: Any = deferred(make(), task_context).trigger
    driver = driver_of(spark)
    assert len(leases(kept)) == 1
    asyncio.run(trigger.on_kill())
    wait_for(lambda: not is_alive(driver))
    assert leases(kept) == []


def test_the_trigger_renews_the_lease_and_never_that_of_another_task(
    spark: FakeSpark, task_context: dict[str, Any], make: Make, kept: Path
) -> None:
    spark.acts(*BOTH)
    trigger: Any = deferred(make(), task_context).trigger
    [lease] = leases(kept)
    told = json.loads(lease.read_text())
    for holder, renewed in ((told["holder"], True), ("somebody else", False)):
        lease.write_text(json.dumps({**told, "holder": holder}))
        trigger._renew_at = 0.0
        trigger._renew_lease()
        assert (json.loads(lease.read_text())["nonce"] != told["nonce"]) is renewed


def test_another_task_that_took_the_table_over_is_left_alone(
    spark: FakeSpark, task_context: dict[str, Any], make: Make, kept: Path
) -> None:
    """The triggerer was away for longer than a lease lives."""
    spark.acts(*BOTH)
    deferral = deferred(make(), task_context)
    [lease] = leases(kept)
    told = {**json.loads(lease.read_text()), "holder": "somebody else"}
    lease.write_text(json.dumps({**told, "until": (clock.now() + LIFE).isoformat()}))
    with pytest.raises(AirflowSkipException, match="somebody else"):
        resumed(make(), task_context, deferral)
    assert json.loads(lease.read_text())["holder"] == "somebody else"


@pytest.mark.parametrize("approval", [[], ["compact-log"]])
def test_a_driver_that_dies_is_tried_again(
    spark: FakeSpark,
    task_context: dict[str, Any],
    make: Make,
    kept: Path,
    tmp_path: Path,
    approval: list[str],
) -> None:
    """The driver of a plan, too."""
    policy = yaml.safe_load((tmp_path / "policy.yaml").read_text())
    policy["defaults"]["approval"] = approval
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    spark.acts("os.kill(os.getpid(), 9)")
    with pytest.raises(AirflowException, match=r"was killed \(SIGKILL\)") as caught:
        resumed(make(), task_context, deferred(make(), task_context))
    assert not isinstance(caught.value, AirflowFailException)
    assert len(spark.starts) == 1


@pytest.mark.parametrize("error", [StorageError("down"), CorruptTableError("bad")])
def test_only_a_run_that_may_succeed_later_is_tried_again(
    task_context: dict[str, Any], make: Make, error: DeltaMaintenanceError
) -> None:
    table = Policy.from_json({"version": 1, "tables": [{"name": "t", "uri": "/t"}]})
    result = failed_run(table.named_tables[0], error, now=clock.now())
    assert result.before is not None
    entry = AssessmentEntry(assessment=result.before, run=result)
    _, failure = make()._ended(task_context, result, entry)
    assert isinstance(failure, AirflowException)
    assert isinstance(failure, AirflowFailException) is isinstance(error, CorruptTableError)


def test_a_manual_run_is_deferred_too_and_carries_out_its_plan(
    spark: FakeSpark, task_context: dict[str, Any], make: Make, folder: Path, kept: Path
) -> None:
    spark.acts(*BOTH)
    task = make(DeltaManualOperator, operation="compact-log")
    deferral = deferred(task, task_context)
    again = make(DeltaManualOperator, operation="compact-log")
    assert resumed(again, task_context, deferral)["operations"] == ["compact-log: done"]
    assert leases(kept) == []


def test_the_deployment_decides_by_default_and_without_a_folder_the_worker_waits(
    spark: FakeSpark, task_context: dict[str, Any], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    monkeypatch.setattr(tasks, "_END_OF_TRY", timedelta())
    spark.acts(*BOTH)
    deferred(make(deferrable=None), task_context)
    monkeypatch.delenv("AIRFLOW__DELTA_MAINTENANCE__REPORT_FOLDER")
    done = make(deferrable=None).execute(task_context)
    assert done["operations"] == ["compact-log: done", "vacuum: done"]
    assert "AIRFLOW__DELTA_MAINTENANCE__REPORT_FOLDER" not in os.environ
