"""Spark jobs whose tasks are deferred: the waiter on the worker, the trigger, and what ends a job.

`spark-submit` is played by a script.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.ledger.table import LedgerTable
from delta_maintenance.storage import open_store
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException
from delta_maintenance_airflow.operators import DeltaCheckpointOperator
from delta_maintenance_airflow.spark.connect import ConnectedJob
from delta_maintenance_airflow.spark.deferral import DeferredJob
from delta_maintenance_airflow.spark.waiting import SECONDS_UNTIL_LOST, JobState, Mailbox
from delta_maintenance_airflow.triggers.spark_job import DeltaSparkJobTrigger, WaitedFor
from tests.support.orchestrators.airflow_versions import since_3_3
from tests.support.orchestrators.deferrals import LIVES, deferred, driver_of, is_clean, resumed
from tests.support.orchestrators.fake_spark import (
    DONE,
    SUBMITTED,
    FakeSpark,
    ResourceManager,
    States,
    connect,
    is_alive,
    reports,
    wait_for,
)

pytest.importorskip("airflow.providers.apache.spark", reason="NO SPARK PROVIDER")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The report folder."""
    (tmp_path / "reports").mkdir()
    return tmp_path / "reports"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_maintenance_airflow.triggers.spark_job.SECONDS_BETWEEN_POLLS", 0.1)


def operator(folder: Path, **arguments: Any) -> DeltaCheckpointOperator:
    given = {"engine": "spark", "report_folder": str(folder), "deferrable": True, **arguments}
    return DeltaCheckpointOperator(task_id="task", table_uri="s3://lake/events", **given)


def test_a_deferred_task_frees_its_worker(
    spark: FakeSpark,
    task_context: dict[str, Any],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = tmp_path / "go"
    line = 'DELTA_MAINTENANCE_APPLICATION {"id": "app-1", "url": "http://driver:4040"}'
    spark.acts(
        f"print({line!r}, flush=True)",
        "print('delta-maintenance: files: 1 of 2', flush=True)",
        "print('26/01/01 WARN s3://key:secret@lake', flush=True)",
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)",
        reports(DONE),
    )
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))
    task = operator(folder, ledger=str(tmp_path / "ledger"))
    task_context["ti"].start_date = clock.now()
    deferral = deferred(task, task_context)
    assert is_alive(driver_of(spark))
    assert not (tmp_path / "ledger").exists(), "the task goes on"
    caplog.set_level("INFO")
    go.touch()
    outcome = resumed(task, task_context, deferral)
    assert outcome["status"] == "written" and outcome["engine"] == "spark"
    ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
    (row,) = ledger.read(("outcome", "engine", "started_at")).to_pylist()
    assert (row["outcome"], row["engine"]) == ("done", "spark")
    assert row["started_at"] == task_context["ti"].start_date
    assert "WARN s3://***@lake" in caplog.text and "secret" not in caplog.text
    task_context["ti"].xcom_push.assert_called_once_with(
        key="delta_spark_ui", value="http://driver:4040"
    )
    wait_for(lambda: is_clean(folder))
    # The next try finds the report, and starts nothing.
    assert task.execute(task_context)["status"] == "written"
    assert len(spark.starts) == 1


@since_3_3
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_user_can_end_the_job_but_a_stopped_triggerer_does_not(
    spark: FakeSpark, task_context: dict[str, Any], folder: Path, interrupted: bool
) -> None:
    spark.acts(LIVES)
    trigger: Any = deferred(operator(folder), task_context).trigger

    async def cancelled() -> None:
        run = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(0.5)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        if not interrupted:
            await trigger.on_kill()

    asyncio.run(cancelled())
    driver = driver_of(spark)
    if interrupted:
        # Twice as long as a request to end needs.
        time.sleep(5)
        assert is_alive(driver)
        asyncio.run(trigger.on_kill())
    wait_for(lambda: not is_alive(driver))
    wait_for(lambda: is_clean(folder))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("still_deferred", [True, False])
def test_before_3_3_the_state_of_the_task_shows_why_a_trigger_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, still_deferred: bool
) -> None:
    module = "delta_maintenance_airflow.triggers.spark_job"

    async def state(_: Any) -> bool:
        return still_deferred

    monkeypatch.setattr(f"{module}._IS_TOLD_OF_KILLS", False)
    monkeypatch.setattr(f"{module}.is_task_deferred", state)
    job = {"key": "k", "name": "k.1", "report_folder": str(tmp_path), "spark_conn_id": "s"}
    trigger = DeltaSparkJobTrigger(job=job)

    async def cancelled() -> None:
        run = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(0.3)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(cancelled())
    mailbox = Mailbox(open_store(str(tmp_path)), "k.1")
    assert mailbox.is_end_requested() is not still_deferred


def test_a_dead_driver_is_explained(
    spark: FakeSpark, task_context: dict[str, Any], folder: Path
) -> None:
    spark.acts("print('26/01/01 ERROR at work', flush=True)", "os.kill(os.getpid(), 9)")
    task = operator(folder)
    with pytest.raises(AirflowException, match=r"was killed \(SIGKILL\)"):
        resumed(task, task_context, deferred(task, task_context))
    spark.acts(reports(DONE))
    assert resumed(task, task_context, deferred(task, task_context))["status"] == "written"


def test_an_error_that_the_job_reports_is_the_error_of_the_task(
    spark: FakeSpark, task_context: dict[str, Any], folder: Path
) -> None:
    error = {"type": "CorruptTableError", "message": "bad", "problem": "bad log"}
    error |= {"exit_status": 5, "retryable": False}
    spark.acts(reports({"status": "failed", "error": error}), "sys.exit(5)")
    task = operator(folder)
    with pytest.raises(AirflowFailException, match="bad log"):
        resumed(task, task_context, deferred(task, task_context))


def test_a_job_that_takes_too_long_is_ended(
    spark: FakeSpark, task_context: dict[str, Any], folder: Path
) -> None:
    spark.acts(LIVES)
    task = operator(folder, execution_timeout=timedelta(milliseconds=1))
    with pytest.raises(AirflowException, match="execution_timeout"):
        resumed(task, task_context, deferred(task, task_context))
    wait_for(lambda: not is_alive(driver_of(spark)))
    wait_for(lambda: list(folder.iterdir()) == [])


def test_a_job_without_a_worker_is_lost(
    spark: FakeSpark,
    task_context: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delta_maintenance_airflow.triggers.spark_job.SECONDS_UNTIL_LOST", 1.0)
    spark.acts(LIVES)
    task = operator(folder)
    deferral = deferred(task, task_context)
    driver = driver_of(spark)
    waiter = int(Path(f"/proc/{driver}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(waiter, signal.SIGKILL)
    os.killpg(driver, signal.SIGKILL)
    with pytest.raises(AirflowException, match="no sign"):
        resumed(task, task_context, deferral)


def test_a_job_is_lost_by_the_clock_of_the_triggerer(tmp_path: Path) -> None:
    now = 0.0
    mailbox = Mailbox(open_store(str(tmp_path)), "k.1")
    job = WaitedFor(mailbox, monotonic=lambda: now)
    mailbox.write(JobState(number=1, progress="one"))
    assert job.poll().lines == ("one",)
    now = SECONDS_UNTIL_LOST - 1
    assert job.poll().event is None
    mailbox.write(JobState(number=2, progress="one"))
    assert job.poll().lines == ()
    now += SECONDS_UNTIL_LOST - 1
    assert job.poll().event is None
    now += 1
    assert (job.poll().event or {})["status"] == "lost"


def test_a_missing_program_fails_the_task_at_once(
    spark: FakeSpark,
    task_context: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "delta_maintenance_airflow.spark.provider.JobHook._build_spark_submit_command",
        lambda *_: ["/nowhere/spark-submit"],
    )
    with pytest.raises(AirflowFailException, match="/nowhere/spark-submit"):
        operator(folder).execute(task_context)
    assert is_clean(folder)


@pytest.mark.parametrize("asked", [True, None])
def test_a_job_that_cannot_be_deferred_is_refused_or_waited_for(
    spark: FakeSpark,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    asked: bool | None,
) -> None:
    """Without a folder that worker and triggerer share."""
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    caplog.set_level("INFO")
    spark.acts(reports(DONE))
    task = DeltaCheckpointOperator(
        task_id="task", table_uri="s3://lake/events", engine="spark", deferrable=asked
    )
    if asked:
        with pytest.raises(AirflowFailException, match="give report_folder"):
            task.execute(task_context)
        assert spark.starts == []
    else:
        assert task.execute(task_context)["status"] == "written"
        assert "give report_folder" in caplog.text


def test_the_deployment_decides_by_default(
    spark: FakeSpark,
    task_context: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__REPORT_FOLDER", str(folder))
    spark.acts(reports(DONE))
    task = DeltaCheckpointOperator(task_id="t", table_uri="s3://lake/events", engine="spark")
    assert resumed(task, task_context, deferred(task, task_context))["status"] == "written"


def test_a_job_on_a_server_runs_beside_the_task(
    spark: FakeSpark,
    task_context: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark Connect; its client is played by the same script."""
    connect(monkeypatch, conn_type="spark_connect", host="sc://spark", port=15002, password="tok")
    command = ConnectedJob.command

    def played(self: ConnectedJob, *arguments: str) -> tuple[str, ...]:
        python, *words = command(self, *arguments)
        assert python == sys.executable
        return ("spark-submit", *words)

    monkeypatch.setattr(ConnectedJob, "command", played)
    spark.acts(
        "assert os.environ['SPARK_REMOTE'] == 'sc://spark:15002/;token=tok'",
        "assert json.load(open(words[words.index('--spec') + 1][1:]))['operation'] == 'checkpoint'",
        reports(DONE),
    )
    task = operator(folder)
    assert resumed(task, task_context, deferred(task, task_context))["status"] == "written"
    [start] = spark.starts
    assert start["words"][:2] == ["-m", "delta_maintenance.spark.job"]
    assert not any("tok" in word for word in start["words"])
    spark.acts(LIVES)
    trigger: Any = deferred(operator(folder, options={"kind": "v2-parquet"}), task_context).trigger
    wait_for(lambda: len(spark.starts) == 2)
    asyncio.run(trigger.on_kill())
    wait_for(lambda: not is_alive(spark.starts[1]["pid"]))


# On a cluster


def on_yarn(context: dict[str, Any], states: States) -> dict[str, Any]:
    context["ti"].stats_tags = {}
    return {**context, "task_state_store": states}


@since_3_3
def test_an_application_on_yarn_is_followed_by_the_triggerer(
    spark: FakeSpark, yarn: type[ResourceManager], task_context: dict[str, Any], folder: Path
) -> None:
    spark.acts(*SUBMITTED, reports(DONE))
    states = States()
    context = on_yarn(task_context, states)
    task = operator(folder)
    deferral = deferred(task, context)
    assert yarn.requests == [] and list(states.values()) == ["application_1_0001"]
    yarn.answers[:] = [("ACCEPTED", "UNDEFINED"), ("RUNNING", "UNDEFINED")]
    yarn.answers.append(("FINISHED", "SUCCEEDED"))
    assert resumed(task, context, deferral)["status"] == "written"
    assert (len(yarn.requests), states, len(spark.starts)) == (3, {}, 1)


@since_3_3
def test_a_user_ends_an_application_on_yarn(
    spark: FakeSpark, yarn: type[ResourceManager], task_context: dict[str, Any], folder: Path
) -> None:
    spark.acts(*SUBMITTED)
    trigger: Any = deferred(operator(folder), on_yarn(task_context, States())).trigger
    asyncio.run(trigger.on_kill())
    [request] = yarn.requests
    assert request.startswith("PUT") and "application_1_0001" in request


@since_3_3
def test_a_resource_manager_that_is_down_for_a_while_loses_nothing(
    spark: FakeSpark, yarn: type[ResourceManager], task_context: dict[str, Any], folder: Path
) -> None:
    spark.acts(*SUBMITTED, reports(DONE))
    context = on_yarn(task_context, States())
    task = operator(folder)
    deferral = deferred(task, context)
    yarn.answers[:] = [("FINISHED", "SUCCEEDED")]
    answer: Callable[[Any], None] = yarn.do_GET

    def down_at_first(self: ResourceManager) -> None:
        if len(self.requests) < 2:
            self.requests.append("down")
            self.send_error(503)
        else:
            answer(self)

    yarn.do_GET = down_at_first
    assert resumed(task, context, deferral)["status"] == "written"
    assert yarn.requests[:2] == ["down", "down"]


def test_a_job_has_no_credentials(tmp_path: Path) -> None:
    assert set(asdict(DeferredJob(key="", name="", report_folder="", spark_conn_id=""))) == {
        "key",
        "name",
        "report_folder",
        "delta_conn_id",
        "spark_conn_id",
        "application",
    }


def test_a_waiter_does_not_import_airflow() -> None:
    """It cannot: below a task, Airflow's database is out of reach."""
    code = "import sys, delta_maintenance_airflow.spark.waiter; print('airflow' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert told.stdout == "False\n"
