"""The checkpoint operator: what it writes, tells, refuses and leaves to retries."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias

from delta_maintenance.errors import CommitConflictError
from delta_maintenance.operations import checkpoint
from delta_maintenance_airflow.operators import DeltaCheckpointOperator
from delta_maintenance_airflow.spark.submission import SparkSubmission
from tests.support.orchestrators.airflow_versions import (
    AirflowException,
    AirflowFailException,
    DagSerialization,
)
from tests.support.orchestrators.fake_spark import kill_until
from tests.support.tables.table_builder import TableBuilder

SPARK_CONNECTION = json.dumps({"conn_type": "spark", "host": "local[1]"})

LAKE_CONNECTION = json.dumps(
    {
        "conn_type": "delta",
        "login": "the-key",
        "password": "the-secret",
        "extra": {"region": "eu-west-1", "session_token": "the-token"},
    }
)


def operator(table: TableBuilder | str, **arguments: Any) -> DeltaCheckpointOperator:
    uri = table if isinstance(table, str) else table.store.root
    return DeltaCheckpointOperator(task_id="checkpoint", table_uri=uri, **arguments)


def test_it_writes_a_checkpoint_and_returns_a_flat_result(
    neglected_table: TableBuilder, task_context: dict[str, Any]
) -> None:
    before = neglected_table.open().snapshot().live_files().sort_by("path")
    outcome = operator(neglected_table).execute(task_context)
    snapshot = neglected_table.open().snapshot()
    assert snapshot.log.checkpoint is not None
    assert snapshot.log.checkpoint.files.version == 9
    assert snapshot.live_files().sort_by("path") == before
    assert outcome["operation"] == "checkpoint"
    assert outcome["status"] == "written"
    assert (outcome["version"], outcome["num_files"]) == (9, 7)
    assert len(json.dumps(outcome)) < 5_000
    assert not any(isinstance(value, dict) for value in outcome.values())


def test_options_and_flags_may_come_as_rendered_text(
    neglected_table: TableBuilder, task_context: dict[str, Any]
) -> None:
    outcome = operator(
        neglected_table,
        options={"kind": "v2-json", "actions_per_sidecar": "3", "time_zone": ""},
        engine="local",
        plan_only="False",
    ).execute(task_context)
    # Seven files, at most three to a sidecar.
    assert (outcome["kind"], outcome["sidecars"]) == ("v2-json", 4)


@pytest.mark.parametrize("flag", [True, "True", "true", "yes"])
def test_plan_only_writes_nothing_and_has_a_reason(
    neglected_table: TableBuilder, task_context: dict[str, Any], flag: bool | str
) -> None:
    outcome = operator(neglected_table, plan_only=flag, engine="local").execute(task_context)
    assert outcome["status"] == "planned"
    assert outcome["kind"] == "classic"
    assert "the local engine was asked for" in outcome["reason"]
    assert neglected_table.open().snapshot().log.checkpoint is None


def test_a_flag_that_is_neither_true_nor_false_writes_nothing(
    neglected_table: TableBuilder, task_context: dict[str, Any]
) -> None:
    with pytest.raises(AirflowFailException, match="option plan_only is neither true nor false"):
        operator(neglected_table, plan_only="plan").execute(task_context)
    assert neglected_table.open().snapshot().log.checkpoint is None


def test_a_second_run_says_that_there_is_nothing_to_do(
    neglected_table: TableBuilder, task_context: dict[str, Any]
) -> None:
    operator(neglected_table).execute(task_context)
    outcome = operator(neglected_table).execute(task_context)
    assert outcome["status"] == "nothing-to-do"
    assert outcome["notes"]


def test_outlets_get_the_version(
    neglected_table: TableBuilder, task_context: dict[str, Any], tmp_path: Path
) -> None:
    asset, alias = Asset(name="events", uri="s3://lake/events"), AssetAlias("maintained")
    operator(neglected_table, outlets=[asset, alias]).execute(task_context)
    extra = {"delta_version": 9, "operation": "checkpoint", "status": "written"}
    assert task_context["outlet_events"][asset].extra == extra
    add = task_context["outlet_events"][alias].add
    add.assert_called_once()
    assert add.call_args.kwargs == {"extra": extra}
    # Not the table's own asset, whose events trigger the Dags that wait for data.
    assert add.call_args.args[0].uri == f"{(tmp_path / 'table').as_uri()}?maintenance=run"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"kind": "v2-json"}}, "v2Checkpoint"),
        ({"options": {"kind": "parquet"}}, "kind"),
        ({"options": {"knd": "classic"}}, "knd"),
        ({"engine": "flink"}, "engine"),
    ],
)
def test_what_no_retry_corrects_fails_at_once(
    classic_table: TableBuilder,
    task_context: dict[str, Any],
    arguments: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(AirflowFailException, match=message):
        operator(classic_table, **arguments).execute(task_context)
    assert classic_table.open().snapshot().log.checkpoint is None


def test_no_table_at_the_address_fails_at_once(
    task_context: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(AirflowFailException, match="_delta_log"):
        operator(str(tmp_path)).execute(task_context)


def test_a_lost_race_is_retried(
    classic_table: TableBuilder, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: Any, **__: Any) -> Any:
        raise CommitConflictError("another writer won", remedy="run again")

    monkeypatch.setattr(checkpoint.operation, "apply", lose)
    with pytest.raises(CommitConflictError):
        operator(classic_table).execute(task_context)


def test_the_engine_can_be_given_in_one_way_only() -> None:
    with pytest.raises(ValueError, match="the argument `engine`"):
        operator("/t", options={"engine": "spark"})


def test_it_survives_serialisation() -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        operator("s3://lake/events", options={"kind": "v2-json"}, delta_conn_id="lake")
    serialized = DagSerialization.serialize_dag(dag)
    json.dumps(serialized)
    task = DagSerialization.deserialize_dag(serialized).get_task("checkpoint")
    assert task.template_fields == list(DeltaCheckpointOperator.template_fields)
    assert task.table_uri == "s3://lake/events"


class FakeSpark:
    """Stands in for the provider's hook: keeps the command and plays the job."""

    def __init__(self, report: dict[str, Any] | None, *, ends_well: bool = True) -> None:
        self.report = report
        self.ends_well = ends_well

    def __call__(self, **arguments: Any) -> FakeSpark:
        self.arguments = arguments
        return self

    def on_kill(self) -> None: ...

    def submit(self, application: str) -> None:
        self.application, self.environment = application, self.arguments["process"]["env"]
        words = self.arguments["application_args"]
        spec, report = (words[words.index(name) + 1] for name in ("--spec", "--report"))
        if spec.startswith("@"):
            self.mode = os.stat(spec[1:]).st_mode & 0o777
            spec = Path(spec[1:]).read_text()
        self.spec = json.loads(spec)
        if self.report is not None:
            with open(report, "w") as file:
                json.dump(self.report, file)
        if not self.ends_well:
            raise AirflowException("exit status 1")


RESULT = {
    "table": "s3://lake/events",
    "version": 9,
    "status": "written",
    "kind": "v2-json",
    "engine": "spark",
    "path": "_delta_log/x.json",
    "sidecars": 2,
    "bytes_written": 100,
    "actions": 12,
    "notes": [f"note {number}" for number in range(30)],
}


def play(monkeypatch: pytest.MonkeyPatch, job: FakeSpark) -> FakeSpark:
    from delta_maintenance_airflow.spark import provider as spark_provider

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK_CONNECTION)
    monkeypatch.setattr(spark_provider, "JobHook", job)
    monkeypatch.setattr(spark_provider, "can_be_followed", lambda _: False)
    return job


@pytest.mark.parametrize("options", [{"kind": "v2-parquet"}, {}])
def test_a_missing_feature_is_reported_before_a_driver_is_started(
    monkeypatch: pytest.MonkeyPatch,
    classic_table: TableBuilder,
    task_context: dict[str, Any],
    options: dict[str, Any],
) -> None:
    job = play(monkeypatch, FakeSpark({"status": "done", "result": RESULT}))
    with pytest.raises(AirflowFailException, match="v2Checkpoint|a V2 kind"):
        operator(classic_table, engine="spark", options=options).execute(task_context)
    assert not hasattr(job, "spec")


def test_credentials_reach_the_driver_only_through_a_private_file(
    monkeypatch: pytest.MonkeyPatch, task_context: dict[str, Any]
) -> None:
    job = play(monkeypatch, FakeSpark({"status": "done", "result": RESULT}))
    # The table is in a store that does not exist.
    monkeypatch.setattr(DeltaCheckpointOperator, "_require_possible", lambda *_: None)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", LAKE_CONNECTION)
    outcome = operator(
        "s3://lake/events",
        engine="spark",
        options={"kind": "v2-json"},
        delta_conn_id="lake",
        spark_conf={"spark.driver.memory": "2g"},
    ).execute(task_context)
    assert job.spec["operation"] == "checkpoint"
    assert job.spec["table"] == "s3://lake/events"
    assert job.spec["storage_options"]["AWS_SECRET_ACCESS_KEY"] == "the-secret"
    assert job.mode == 0o600
    assert job.spec["options"]["kind"] == "v2-json"
    assert job.spec["options"]["engine"] == "spark"
    assert job.arguments["conf"] == {"spark.driver.memory": "2g"}
    told = [job.arguments["application_args"], job.arguments["conf"]]
    assert "the-" not in json.dumps(told)
    assert job.environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    shown = {"notes": RESULT["notes"][:10], "num_notes": 30}
    assert outcome.items() >= {"operation": "checkpoint", **RESULT, **shown}.items()


def test_a_job_writes_the_checkpoint_of_the_version_that_was_planned(
    monkeypatch: pytest.MonkeyPatch, neglected_table: TableBuilder, task_context: dict[str, Any]
) -> None:
    job = play(monkeypatch, FakeSpark({"status": "done", "result": RESULT}))
    options = {"kind": "v2-json", "auto_spark_bytes": 1}
    operator(neglected_table, options=options).execute(task_context)
    assert (job.spec["operation"], job.spec["version"]) == ("checkpoint", 9)


@pytest.mark.parametrize(
    ("kind", "passes"),
    [("StorageError", True), ("UnsupportedFeatureError", False), ("Py4JJavaError", True)],
)
def test_the_error_of_the_job_fails_the_task_without_useless_retries(
    monkeypatch: pytest.MonkeyPatch, task_context: dict[str, Any], kind: str, passes: bool
) -> None:
    error = {
        "type": kind,
        "message": "table /t: it is broken; mend it",
        "exit_status": 1,
        "retryable": passes,
        "problem": "it is broken",
        "table": "/t",
        "remedy": "mend it",
    }
    play(monkeypatch, FakeSpark({"status": "failed", "error": error}, ends_well=False))
    with pytest.raises(Exception, match="table /t: it is broken; mend it") as caught:
        operator("/t", engine="spark").execute(task_context)
    assert isinstance(caught.value, AirflowFailException) is not passes


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_job_that_leaves_no_report_is_retried(
    monkeypatch: pytest.MonkeyPatch, task_context: dict[str, Any], ends_well: bool
) -> None:
    play(monkeypatch, FakeSpark(None, ends_well=ends_well))
    with pytest.raises(AirflowException, match="exit status 1|without a report") as caught:
        operator("/t", engine="spark").execute(task_context)
    assert not isinstance(caught.value, AirflowFailException)


def test_a_report_folder_gets_a_new_report_each_time(
    monkeypatch: pytest.MonkeyPatch, task_context: dict[str, Any], tmp_path: Path
) -> None:
    job = play(monkeypatch, FakeSpark({"status": "done", "result": RESULT}))
    task = operator("/t", engine="spark", report_folder=f"{tmp_path}/")
    task.execute(task_context)
    job.report = None
    # Cleared, it is a task of its own.
    task_context["ti"].max_tries += 1
    with pytest.raises(AirflowException, match="without a report"):
        task.execute(task_context)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_driver_on_the_cluster_needs_a_report_folder_and_gets_no_credentials(
    monkeypatch: pytest.MonkeyPatch, task_context: dict[str, Any], tmp_path: Path
) -> None:
    job = play(monkeypatch, FakeSpark({"status": "done", "result": RESULT}))
    on_cluster = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(on_cluster))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", LAKE_CONNECTION)
    arguments = {"engine": "spark", "delta_conn_id": "lake"}
    with pytest.raises(AirflowFailException, match="report_folder"):
        operator("s3://b/t", **arguments).execute(task_context)
    operator("s3://b/t", **arguments, report_folder=str(tmp_path)).execute(task_context)
    assert job.spec["storage_options"] == {"region": "eu-west-1"}
    assert "the-" not in json.dumps(job.arguments["application_args"])


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_kill_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, task_context: dict[str, Any], tmp_path: Path
) -> None:
    started = tmp_path / "started"
    spark_submit = tmp_path / "spark-submit"
    spark_submit.write_text(
        f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nexec sleep 600\n"
    )
    spark_submit.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK_CONNECTION)
    # On a busy machine a process may take seconds to end. No SIGKILL may come in the meantime.
    monkeypatch.setattr("delta_maintenance_airflow.spark.folder._SECONDS_TO_END", 300.0)
    task = operator("/t", engine="spark")
    task.on_kill()

    def kill() -> None:
        while not started.exists():
            time.sleep(0.01)
        kill_until(ended, task)

    # As in Airflow, where a signal handler calls on_kill while execute waits for the job.
    ended = threading.Event()
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    # By SIGTERM, and not by itself.
    with pytest.raises(AirflowException, match="Error code is: -15"):
        task.execute(task_context)
    ended.set()
    killer.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    # The provider leaves the pipe to the garbage collector.
    gc.collect()


def test_without_the_spark_provider_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, task_context: dict[str, Any]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK_CONNECTION)
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.hooks.spark_submit", None)
    monkeypatch.delitem(sys.modules, "delta_maintenance_airflow.spark.provider", raising=False)
    monkeypatch.delattr("delta_maintenance_airflow.spark.provider", raising=False)
    with pytest.raises(AirflowFailException, match=r"delta-maintenance\[airflow-spark\]"):
        operator("/t", engine="spark").execute(task_context)


def test_without_spark_submit_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, task_context: dict[str, Any]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK_CONNECTION)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(AirflowFailException, match="no spark-submit on this worker"):
        operator("/t", engine="spark").execute(task_context)


def test_an_unknown_spark_connection_does_not_mean_yarn(task_context: dict[str, Any]) -> None:
    task = operator("/t", engine="spark", spark_conn_id="no_such_connection")
    with pytest.raises(Exception, match="no_such_connection"):
        task.execute(task_context)
    assert isinstance(task._submission, SparkSubmission)
