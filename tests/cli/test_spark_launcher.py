"""Starts of Spark jobs: their input, their answers, and their end.

A script acts as `spark-submit`, so that no Java is needed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.cli import spark_launcher
from delta_maintenance.cli.spark_launcher import split_secrets
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointResult
from delta_maintenance.operations.fsck import FindingCount, FsckOptions, FsckResult
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.storage.options import parse_options
from delta_maintenance.submission import APPLICATION, JobSpec, find_spark_home
from tests.support.catalogs.in_memory import catalog_table, use_catalogs
from tests.support.tables.sound_tables import SoundTable

SUBMIT = """\
#!{python}
import json, os, sys, time
words = sys.argv[1:]
spec = words[words.index("--spec") + 1]
report = words[words.index("--report") + 1]
seen = {{
    "words": words[: words.index("--spec")],
    "spec": json.load(open(spec[1:])),
    "environment": dict(os.environ),
    "private": os.stat(os.path.dirname(report)).st_mode & 0o077 == 0,
}}
json.dump(seen, open({seen!r}, "w"))
print("26/01/01 WARN something of Spark's own", file=sys.stderr)
print("delta-maintenance: half of it", flush=True)
answer = {answer!r}
if answer == "sleep":
    time.sleep(600)
elif answer is not None:
    json.dump(answer, open(report, "w"))
else:
    print("java: not found", file=sys.stderr)
    sys.exit(127)
"""


class FakeSpark:
    """A SPARK_HOME whose spark-submit records its input and gives a fixed answer."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.seen_file = home / "seen.json"
        (home / "bin").mkdir(parents=True)

    def answers(self, report: object) -> None:
        """Sets the report; None for a job that dies without one."""
        submit = self.home / "bin" / "spark-submit"
        submit.write_text(
            SUBMIT.format(python=sys.executable, seen=str(self.seen_file), answer=report)
        )
        submit.chmod(0o755)

    @property
    def seen(self) -> dict[str, Any]:
        """Returns the recorded input."""
        loaded: dict[str, Any] = json.loads(self.seen_file.read_text())
        return loaded


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    spark = FakeSpark(tmp_path / "spark")
    monkeypatch.setenv("SPARK_HOME", str(spark.home))
    return spark


def result_of(table: str) -> CheckpointResult:
    return CheckpointResult(
        table=table, version=3, status="written", kind="v2-parquet", engine="spark", num_files=3
    )


@pytest.mark.process
def test_the_job_gets_its_specification_and_its_result_is_printed(
    cli: Any, spark: FakeSpark, v2_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.answers({"status": "done", "result": result_of(v2_table).to_json()})
    monkeypatch.chdir(os.path.dirname(v2_table))
    outcome = cli(
        *("checkpoint", os.path.basename(v2_table), "--engine", "spark", "--json"),
        *("--master", "local[2]", "--spark-conf", "a=b=c", "--spark-conf", "d="),
    )
    assert outcome.status == 0
    assert CheckpointResult.from_json(outcome.document) == result_of(v2_table)
    seen = spark.seen
    assert seen["words"] == [
        "--master",
        "local[2]",
        "--conf",
        "a=b=c",
        "--conf",
        "d=",
        str(APPLICATION),
    ]
    assert seen["spec"] == {
        "operation": "checkpoint",
        "table": v2_table,
        "catalog_name": None,
        "storage_options": {},
        "version": 3,
        "options": CheckpointOptions(engine="spark").to_json(),
        "report_uri": None,
        "plan_only": False,
        "approved": None,
        "ledger": None,
        "ledger_state": None,
    }
    assert seen["environment"]["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert seen["private"]


@pytest.mark.process
def test_remote_executors_get_the_library(cli: Any, spark: FakeSpark, v2_table: str) -> None:
    spark.answers({"status": "done", "result": result_of(v2_table).to_json()})
    assert (
        cli("checkpoint", v2_table, "--engine", "spark", "--master", "spark://m:7077").status == 0
    )
    words = spark.seen["words"]
    assert os.path.basename(words[words.index("--py-files") + 1]) == "delta_maintenance.zip"


@pytest.mark.process
def test_spark_connect_is_configured_only_by_the_environment(
    cli: Any, v2_table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No spark-submit, no Java: this Python is started with the address, and a token, around it."""
    spark = FakeSpark(tmp_path / "client")
    spark.answers({"status": "done", "result": result_of(v2_table).to_json()})
    monkeypatch.setenv("SPARK_HOME", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(spark.home / "bin" / "spark-submit"))
    words = ("checkpoint", v2_table, "--engine", "spark")
    assert cli(*words, "--master", "sc://spark:15002").status == 0
    assert spark.seen["environment"]["SPARK_REMOTE"] == "sc://spark:15002"
    monkeypatch.setenv("SPARK_REMOTE", "sc://other/;token=hush")
    assert cli(*words).status == 0
    assert spark.seen["environment"]["SPARK_REMOTE"] == "sc://other/;token=hush"
    assert not any("sc://" in word for word in spark.seen["words"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--master", "sc://spark/;token=hush"), "SPARK_REMOTE"),
        (("--master", "sc://spark", "--spark-conf", "spark.task.cpus=1"), "--spark-conf"),
        (("--spark-conf", "spark.hadoop.fs.s3a.secret.key=hush"), "is a secret"),
    ],
)
def test_secrets_are_not_on_the_command_line_and_no_property_is_lost(
    cli: Any, spark: FakeSpark, v2_table: str, words: tuple[str, ...], problem: str
) -> None:
    outcome = cli("checkpoint", v2_table, "--engine", "spark", *words)
    assert (outcome.status, spark.seen_file.exists()) == (2, False)
    assert problem in outcome.err and "hush" not in outcome.err


@pytest.mark.parametrize("engine", ["spark", "auto"])
@pytest.mark.process
def test_a_deep_fsck_of_many_files_runs_as_a_job(
    engine: str, cli: Any, spark: FakeSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SoundTable(LocalStore(tmp_path / "table"), extras=False).store.root
    count = FindingCount(kind="missing-sidecar", severity="corrupt", count=1)
    result = FsckResult(table=table, version=3, status="corrupt", counts=(count,))
    spark.answers({"status": "done", "result": result.to_json()})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "delta_maintenance.operations.fsck.operation._most_files", lambda options: 1
    )
    words = ("fsck", "table", "--deep", "--engine", engine)

    dry = cli(*words, "--dry-run", "--json")
    assert (dry.document["engine"], spark.seen_file.exists()) == ("spark", False)

    outcome = cli(*words, "--json", "--report", "findings.parquet")
    assert outcome.status == 5
    assert FsckResult.from_json(outcome.document) == result
    assert spark.seen["spec"] == {
        "operation": "fsck",
        "table": table,
        "catalog_name": None,
        "storage_options": {},
        "options": FsckOptions(deep=True, engine="spark").to_json(),
        "report_uri": str(tmp_path / "findings.parquet"),
        "version": None,
        "plan_only": False,
        "approved": None,
        "ledger": None,
        "ledger_state": None,
    }
    JobSpec.from_json(spark.seen["spec"])


@pytest.mark.process
def test_job_progress_is_shown_and_the_spark_log_only_on_request(
    cli: Any, spark: FakeSpark, v2_table: str
) -> None:
    spark.answers({"status": "done", "result": result_of(v2_table).to_json()})
    assert cli("checkpoint", v2_table, "--engine", "spark").err == "delta-maintenance: half of it\n"
    verbose = cli("checkpoint", v2_table, "--engine", "spark", "-v").err
    assert "delta-maintenance: spark: 26/01/01 WARN something of Spark's own" in verbose


@pytest.mark.process
def test_an_error_of_the_job_is_the_error_of_the_command(
    cli: Any, spark: FakeSpark, v2_table: str
) -> None:
    error = {
        "type": "RefusedError",
        "message": "it is not safe",
        "exit_status": 3,
        "retryable": False,
        "problem": "it is not safe",
        "table": v2_table,
        "version": 3,
        "file": None,
        "remedy": "do something else",
    }
    spark.answers({"status": "refused", "error": error})
    outcome = cli("checkpoint", v2_table, "--engine", "spark")
    assert (outcome.status, outcome.out) == (3, "")
    assert outcome.err.splitlines()[-1] == (
        f"delta-maintenance: table {v2_table}, version 3: it is not safe; do something else"
    )
    spark.answers({"status": "failed", "error": {**error, "type": "NoSuchError"}})
    assert cli("checkpoint", v2_table, "--engine", "spark").status == 1


@pytest.mark.process
def test_lines_of_a_job_are_shown_without_credentials(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "print('s3://AKIA1:canary@lake/t'); print('az://data/t?sig=canary')"
    last = spark_launcher._run([sys.executable, "-c", lines], os.environ, verbose=True)
    assert last == "az://data/t?***"
    assert "canary" not in "".join(capsys.readouterr())


@pytest.mark.process
def test_the_last_line_of_a_dead_job_is_shown(
    cli: Any, spark: FakeSpark, v2_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.answers(None)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/java")
    outcome = cli("checkpoint", v2_table, "--engine", "spark")
    assert (outcome.status, outcome.out) == (1, "")
    assert "without a report: java: not found; run again with -v" in outcome.err
    monkeypatch.setattr("shutil.which", lambda _: None)
    missing = cli("checkpoint", v2_table, "--engine", "spark")
    assert missing.status == 1
    assert "java: not found; install Java 17 or newer or set JAVA_HOME" in missing.err


def test_a_dry_run_and_a_done_checkpoint_start_no_job(cli: Any, v2_table: str) -> None:
    # No spark-submit is available here.
    words = ("checkpoint", v2_table, "--engine", "spark")
    assert cli(*words, "--dry-run").status == 0
    assert cli("checkpoint", v2_table).status == 0
    assert cli(*words).status == 0


def test_without_spark_the_error_names_what_to_install(
    cli: Any, v2_table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    outcome = cli("checkpoint", v2_table, "--engine", "spark")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert "pyspark is not installed" in outcome.err
    assert "delta-maintenance[spark], or use --engine local" in outcome.err
    planned = cli("checkpoint", v2_table, "--engine", "spark", "--dry-run")
    assert planned.status == 0 and planned.err.count("\n") == 1
    assert "warning: the run needs Spark, and pyspark is not installed" in planned.err
    assert cli("checkpoint", v2_table, "--dry-run").err == ""
    # This expression is evaluated by Spark only.
    words = ("add-constraint", v2_table, "positive", "abs(id) > 0")
    assert "--engine" not in cli(*words).err and "delta-maintenance[spark], or" in cli(*words).err
    for engine in ("auto", "local"):
        refused = cli(*words, "--engine", engine)
        assert (refused.status, refused.out) == (2, "")
        assert "only Spark can evaluate abs(id) > 0, because it has other parts" in refused.err
    assert "warning: the run needs Spark" in cli(*words, "--dry-run").err
    assert cli(*words, "--dry-run", "--master", "sc://spark:15002").err == ""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    assert "not contain bin/spark-submit" in cli("checkpoint", v2_table, "--engine", "spark").err


@pytest.mark.parametrize("place", ["version.py", "python/pyspark/version.py"])
def test_a_spark_that_is_too_old_is_refused_before_it_is_started(
    cli: Any, spark: FakeSpark, v2_table: str, place: str
) -> None:
    spark.answers(None)
    (spark.home / place).parent.mkdir(parents=True, exist_ok=True)
    (spark.home / place).write_text('__version__: str = "3.4.4"\n')
    outcome = cli("checkpoint", v2_table, "--engine", "spark")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert f"{spark.home} is Spark 3.4.4, and the jobs need Spark 3.5 or newer" in outcome.err
    assert "install 'pyspark>=3.5'" in outcome.err and not spark.seen_file.exists()


def test_the_pyspark_of_this_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    pytest.importorskip("pyspark")
    assert (find_spark_home() / "bin" / "spark-submit").is_file()


def test_secrets_are_passed_only_in_the_environment() -> None:
    public, secrets = split_secrets(
        "s3://bucket/t",
        {
            "AWS_ACCESS_KEY_ID": "id",
            "secret": "hush",
            "endpoint_url": "http://localhost:9000",
            "AWS_REGION": "eu-west-1",
        },
    )
    assert public == {"endpoint_url": "http://localhost:9000", "region": "eu-west-1"}
    # A session token of the environment belongs to another key, and must not be inherited.
    assert secrets == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_SESSION_TOKEN": None,
    }
    assert split_secrets("s3://bucket/t", {}) == ({}, {})
    assert split_secrets("s3://bucket/t", {"anon": "true"}) == ({"anon": "true"}, {})
    with pytest.raises(InvalidRequestError):
        split_secrets("s3://bucket/t", {"password": "hush"})


@pytest.mark.parametrize(
    ("table", "given"),
    [
        ("gs://bucket/t", {"token": '{"private_key": "hush"}'}),
        ("az://data/t", {"account_name": "a", "account_key": "hush"}),
        ("abfss://data@a.dfs.core.windows.net/t", {"sas_token": "sig=hush"}),
        (
            "abfss://data@a.dfs.core.windows.net/t",
            {"client_secret": "hush", "tenant_id": "t", "client_id": "c"},
        ),
    ],
)
def test_the_environment_of_the_driver_has_the_given_options(
    table: str, given: dict[str, str]
) -> None:
    public, secrets = split_secrets(table, given)
    assert "hush" not in json.dumps(public) and "hush" in json.dumps(secrets)
    inherited = {"AZURE_STORAGE_ACCOUNT_KEY": "b2xk", "AZURE_STORAGE_CONNECTION_STRING": "old"}
    environment = {k: v for k, v in {**inherited, **secrets}.items() if v is not None}
    if table.startswith("gs:"):
        environment = {k: v for k, v in secrets.items() if v is not None}
    assert parse_options(table, public, environment) == parse_options(table, given)


@pytest.mark.process
def test_a_terminated_command_ends_its_job(spark: FakeSpark, v2_table: str) -> None:
    spark.answers("sleep")
    words = ["checkpoint", v2_table, "--engine", "spark"]
    with subprocess.Popen(
        [sys.executable, "-m", "delta_maintenance", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        assert b"half of it" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        # The end of stderr, which the job holds open as well, shows that both have ended.
        assert process.stderr.read() == b""
        assert process.wait(300) == 143


@pytest.mark.process
def test_a_job_gets_the_name_of_a_table_without_vended_credentials(
    cli: Any, spark: FakeSpark, v2_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "uc://prod.sales.orders"
    monkeypatch.setenv("UNITY_CATALOG_URI", "https://lake")
    use_catalogs(monkeypatch, {"https://lake": [catalog_table(name, f"file://{v2_table}")]})
    spark.answers({"status": "done", "result": result_of(v2_table).to_json()})
    assert cli("checkpoint", name, "--engine", "spark", "--master", "local[1]").status == 0
    spec = spark.seen["spec"]
    assert (spec["catalog_name"], spec["storage_options"]) == (name, {})
