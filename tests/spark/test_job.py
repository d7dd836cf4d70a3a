"""What a job is told and what it answers, without Spark."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from delta_maintenance import errors
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.spark import executor_options, job
from delta_maintenance.spark.rewriting import _lost
from delta_maintenance.submission import (
    APPLICATION,
    JobError,
    JobReport,
    JobSpec,
    read_report,
    submit_command,
)
from delta_maintenance.table.data import Bin
from delta_maintenance.table.progress import Progress

SPEC = JobSpec(
    operation="checkpoint",
    table="s3://bucket/table",
    version=7,
    storage_options={"AWS_SECRET_ACCESS_KEY": "hush", "AWS_ACCESS_KEY_ID": "me"},
    options={"kind": "v2-json"},
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the job from starting Spark."""
    monkeypatch.setattr(
        job,
        "_in_session",
        lambda spec: JobReport(status="done", result={"table": spec.table, "status": "written"}),
    )


def fails_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_: JobSpec) -> None:
        raise error

    monkeypatch.setattr(job, "_in_session", fail)


def test_a_spark_without_pandas_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As PySpark 3.5 says it on the driver, and in the failure of a task.
    missing = "Pandas >= 1.0.5 must be installed; however, it was not found."
    error = ImportError(missing)
    fails_with(monkeypatch, error)
    job.main(["--spec", json.dumps(SPEC.to_json())])
    assert "pip install 'delta-maintenance[spark]'" in "".join(capsys.readouterr())
    lost = _lost(
        Bin(number=0, sources=(), reasons=()),
        Exception(
            f"Job aborted. most recent failure: Lost task 0.0: ImportError: {missing}\n\tat x"
        ),
    )
    assert missing in str(lost.problem) and "delta-maintenance[spark]" in str(lost.problem)
    other = _lost(Bin(number=0, sources=(), reasons=()), Exception("it was stopped"))
    assert other.problem == "no executor completed the task: it was stopped"


def test_a_specification_survives_its_json() -> None:
    assert JobSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC
    assert JobSpec.from_json({"operation": "checkpoint", "table": "/t"}).version is None
    with pytest.raises(InvalidRequestError, match="operation"):
        JobSpec.from_json({"operation": "vacate", "table": "/t"})


def test_credentials_stay_out_of_arguments_and_texts(tmp_path: Path) -> None:
    word = SPEC.write(tmp_path / "spec.json")
    assert stat.S_IMODE((tmp_path / "spec.json").stat().st_mode) == 0o600
    assert job.read_spec(word) == SPEC
    assert "hush" not in " ".join(submit_command(word, "report.json"))
    assert "hush" not in repr(SPEC)


def test_the_command_line() -> None:
    command = submit_command(
        "@spec.json",
        "s3://bucket/report.json",
        spark_submit="/opt/spark/bin/spark-submit",
        master="local[2]",
        conf={"spark.executor.memory": "2g"},
        py_files=["a.whl", "b.zip"],
    )
    assert command == [
        "/opt/spark/bin/spark-submit",
        *("--master", "local[2]"),
        *("--conf", "spark.executor.memory=2g"),
        *("--py-files", "a.whl,b.zip"),
        str(APPLICATION),
        *("--spec", "@spec.json", "--report", "s3://bucket/report.json"),
    ]
    assert APPLICATION.is_file()


@pytest.mark.usefixtures("run")
def test_a_finished_job_reports_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    spec = json.dumps({"operation": "checkpoint", "table": "/t"})
    assert job.main(["--spec", spec, "--report", str(report)]) == 0
    assert read_report(report).result_or_raise() == {"table": "/t", "status": "written"}
    assert json.loads(report.read_text()) == {
        "status": "done",
        "result": {"table": "/t", "status": "written"},
    }
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"DELTA_MAINTENANCE_REPORT {report.read_text()}"
    assert list(tmp_path.iterdir()) == [report]


@pytest.mark.parametrize(
    ("error", "status", "exit_status"),
    [
        (UnsupportedFeatureError("no", table="t", remedy="upgrade"), "refused", 3),
        (CorruptTableError("bad", table="t", version=3, file="f", remedy="fix"), "failed", 5),
        (StorageError("down"), "failed", 1),
        (KeyError("oops"), "failed", 1),
    ],
)
def test_every_error_is_reported(
    error: Exception,
    status: str,
    exit_status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fails_with(monkeypatch, error)
    report = tmp_path / "report.json"
    assert job.main(["--spec", json.dumps(SPEC.to_json()), "--report", str(report)]) == exit_status
    told = read_report(report)
    assert (told.status, told.exit_status, told.result) == (status, exit_status, None)
    with pytest.raises(DeltaMaintenanceError) as raised:
        told.result_or_raise()
    if isinstance(error, DeltaMaintenanceError):
        assert type(raised.value) is type(error)
        assert str(raised.value) == str(error)
        assert told.error is not None and told.error.retryable == error.retryable
    assert f"delta-maintenance: {raised.value}\n" in capsys.readouterr().out


def test_the_progress_of_many_bins_is_few_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rewrite(spec: JobSpec, spark: object, progress: Progress, row: object) -> JobSpec:
        for number in range(1, 101):
            progress("bins rewritten", number, 100)
            progress("bytes rewritten", number * 1_000_000, 200_000_000, unit="bytes")
        return spec

    monkeypatch.setattr(job, "_run", rewrite)
    assert job.run(SPEC, cast(SparkSession, None)) == SPEC.to_json()
    assert capsys.readouterr().out.splitlines() == [
        "delta-maintenance: bins rewritten: 1 of 100",
        "delta-maintenance: bytes rewritten: 977 KiB of 191 MiB",
        "delta-maintenance: bins rewritten: 100 of 100",
        "delta-maintenance: bytes rewritten: 95.4 MiB of 191 MiB",
    ]


@pytest.mark.parametrize("text", ["{", "@/nowhere/spec.json", '{"table": "/t"}', "[]"])
def test_a_broken_specification_is_a_usage_error(text: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert job.main(["--spec", text, "--report", str(report)]) == 2
    assert read_report(report).error is not None


def test_the_report_contains_the_error_of_a_failed_task() -> None:
    error = RuntimeError(
        "Job aborted due to stage failure:\nTraceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n    raise StorageError("a: b")\n'
        "delta_maintenance.errors.StorageError: S3 is down\n\n\tat java.lang.Thread.run\n"
    )
    told = JobReport.of_error(error).error
    assert told is not None
    assert told.problem == "RuntimeError: delta_maintenance.errors.StorageError: S3 is down"


def test_an_error_of_a_newer_release_is_still_an_error() -> None:
    told = JobError.from_json(
        {"type": "Newer", "message": "m", "exit_status": 1, "retryable": True, "problem": "p"}
    )
    assert type(told.to_error()) is DeltaMaintenanceError
    assert not hasattr(errors, "Newer")


def test_executors_get_the_credentials_of_the_driver() -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "HOME": "/root",
    }
    told = executor_options("S3a://b/t", {}, environment)
    assert told == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    }
    assert executor_options("/local", None, environment) == {}
    assert executor_options("s3://b/t", None, {"AWS_ACCESS_KEY_ID": "half"}) == {}


def test_executors_receive_the_drivers_google_and_azure_settings() -> None:
    environment = {
        "GOOGLE_SERVICE_ACCOUNT_KEY": "{}",
        "GOOGLE_APPLICATION_CREDENTIALS": "/only/on/the/driver.json",
        "AZURE_STORAGE_ACCOUNT_NAME": "acct",
        "AZURE_STORAGE_SAS_TOKEN": "sig=x",
    }
    assert executor_options("gs://b/t", None, environment) == {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}
    endpoint = {"account_name": "acct", "endpoint": "https://acct.blob.core.windows.net"}
    told = executor_options("az://data/t", None, environment)
    assert told == {**endpoint, "AZURE_STORAGE_SAS_TOKEN": "sig=x"}
    chosen = executor_options("az://data/t", {"account_key": "S2V5"}, environment)
    assert chosen == {**endpoint, "AZURE_STORAGE_ACCOUNT_KEY": "S2V5"}
    principal = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "s"}
    told = executor_options("abfss://data@acct.dfs.core.windows.net/t", None, principal)
    assert told == endpoint | principal


@pytest.mark.parametrize(
    "given", [{"key": "k", "secret": "s"}, {"AWS_PROFILE": "work"}, {"anon": "true"}]
)
def test_a_choice_of_credentials_is_not_mixed_with_others(given: dict[str, str]) -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
    }
    assert executor_options("s3://b/t", given, environment) == given


@pytest.mark.spark
def test_a_shared_session_outlives_the_job(spark: SparkSession, tmp_path: Path) -> None:
    spec = json.dumps({"operation": "checkpoint", "table": str(tmp_path / "none")})
    assert job.main(["--spec", spec]) == 5
    assert spark.range(3).count() == 3


@pytest.mark.parametrize("version", ["3.4.4", "2.4.8"])
def test_a_pyspark_that_is_too_old_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    spec = JobSpec(operation="checkpoint", table=str(tmp_path / "none"))
    with pytest.raises(InvalidRequestError) as raised:
        job.run(spec, cast(SparkSession, None))
    said = f"the package pyspark of the driver is Spark {version}, and the jobs need Spark 3.5"
    assert str(raised.value).startswith(said) and "'pyspark>=3.5'" in str(raised.value)


def test_the_error_of_a_task_is_named_by_its_own_text() -> None:
    quoted = (
        "An error occurred while calling o86.collectToPython.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 "
        "failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.2 "
        "executor 1): org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by "
        "zero.\n== SQL(line 1, position 1) ==\n"
    )
    message = JobError.of(RuntimeError(quoted)).message
    assert "RuntimeError: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO]" in message
