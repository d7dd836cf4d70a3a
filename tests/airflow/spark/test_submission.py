"""A Spark job and its task: the task's log, the end after a kill, and the finds of a second try.

`spark-submit` is played by a script; the provider's own hook and operator start it.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.errors import CommitConflictError
from delta_maintenance.submission import JobError
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException
from delta_maintenance_airflow.links import SparkUILink
from delta_maintenance_airflow.operators import (
    DeltaAddConstraintOperator,
    DeltaCompactLogOperator,
    DeltaVacuumOperator,
)
from delta_maintenance_airflow.spark.folder import end_group
from delta_maintenance_airflow.spark.provider import JobOutput
from tests.support.catalogs.in_memory import catalog_table, use_catalogs
from tests.support.orchestrators.fake_spark import (
    DONE,
    RESULT,
    FakeSpark,
    connect,
    is_alive,
    kill_until,
    reports,
    wait_for,
)
from tests.support.orchestrators.spark_tasks import operator
from tests.support.tables.table_builder import TableBuilder

pytest.importorskip("airflow.providers.apache.spark", reason="NO SPARK PROVIDER")
# The provider leaves the pipe from spark-submit to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


# Output.


def test_lines_for_people_are_shown_and_those_of_spark_are_folded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told: list[str] = []
    lines = [
        "26/01/01 WARN one",
        "26/01/01 WARN two",
        'DELTA_MAINTENANCE_APPLICATION {"id": "app-1", "url": "http://driver:4040"}',
        "delta-maintenance: files: 1 of 2",
        "26/01/01 WARN three",
        "\t tracking URL: http://driver:4040",
        "DELTA_MAINTENANCE_REPORT {}",
    ]
    sifted = list(JobOutput(told.append).sift(f"{line}\n" for line in lines))
    assert [line.strip() for line in sifted] == [lines[0], lines[1], lines[4], lines[5].strip()]
    assert told == ["http://driver:4040"]
    assert caplog.messages == [
        "::group::Log of Spark",
        "::endgroup::",
        "Spark UI: http://driver:4040",
        "files: 1 of 2",
        "::group::Log of Spark",
        "::endgroup::",
    ]


def test_lines_are_shown_without_the_credentials_in_their_addresses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told: list[str] = []
    lines = [
        "26/01/01 WARN cannot read https://acct.example/data?sv=1&sig=canary",
        "delta-maintenance: reading s3://AKIA1:canary@lake/t",
        'DELTA_MAINTENANCE_APPLICATION {"id": "app-1", "url": "http://user:canary@driver:4040"}',
    ]
    sifted = list(JobOutput(told.append).sift(lines))
    assert len(sifted) == 1 and len(told) == 1 and "reading s3://***@lake/t" in caplog.text
    assert "canary" not in "".join([*sifted, *told, caplog.text])


def test_the_link_exists_while_the_job_runs(
    spark: FakeSpark, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = 'DELTA_MAINTENANCE_APPLICATION {"id": "app-1", "url": "http://driver:4040"}'
    spark.acts(f"print({line!r}, flush=True)", reports(DONE))
    operator().execute(task_context)
    link = SparkUILink()
    task_context["ti"].xcom_push.assert_called_once_with(
        key=link.xcom_key, value="http://driver:4040"
    )
    from airflow.sdk.execution_time.xcom import XCom

    kept = {link.xcom_key: "http://driver:4040"}
    monkeypatch.setattr(XCom, "get_value", lambda *, ti_key, key: kept.get(key))
    assert link.get_link(operator(), ti_key=None) == "http://driver:4040"  # type: ignore[arg-type]
    kept.clear()
    assert link.get_link(operator(), ti_key=None) == ""  # type: ignore[arg-type]


def test_a_job_gets_the_name_of_its_table(
    spark: FakeSpark, task_context: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, seen = "uc://prod.sales.orders", tmp_path / "spec.json"
    monkeypatch.setenv("UNITY_CATALOG_URI", "https://lake")
    use_catalogs(monkeypatch, {"https://lake": [catalog_table(name, "s3://lake/events")]})
    spark.acts(
        "spec = words[words.index('--spec') + 1]",
        f"open({str(seen)!r}, 'w').write(open(spec[1:]).read() if spec[0] == '@' else spec)",
        reports(DONE),
    )
    operator(table_uri=name).execute(task_context)
    spec = json.loads(seen.read_text())
    assert (spec["table"], spec["catalog_name"]) == ("s3://lake/events", name)


def test_large_compactions_are_submitted_and_reported_like_others(
    spark: FakeSpark, task_context: dict[str, Any]
) -> None:
    window = {"first_version": 1, "last_version": 20, "status": "written", "num_adds": 7}
    result = {**RESULT, "windows": [window], "bytes_written": 5}
    del result["kind"]
    spark.acts(reports({"status": "done", "result": result}))
    outcome = operator(DeltaCompactLogOperator, options={"commits_per_file": 20}).execute(
        task_context
    )
    assert (outcome["operation"], outcome["status"], outcome["engine"]) == (
        "compact-log",
        "written",
        "spark",
    )
    window |= {"status": "differs", "reason": "it has 1 adds"}
    spark.acts(reports({"status": "done", "result": {**result, "status": "failed"}}))
    with pytest.raises(AirflowFailException, match="could not be compacted.*it has 1 adds"):
        operator(DeltaCompactLogOperator, options={"commits_per_file": 30}).execute(task_context)


def test_an_unsaved_link_does_not_fail_the_task(
    spark: FakeSpark, task_context: dict[str, Any]
) -> None:
    task_context["ti"].xcom_push.side_effect = RuntimeError("the API server is down")
    line = 'DELTA_MAINTENANCE_APPLICATION {"id": "app-1", "url": "http://driver:4040"}'
    spark.acts(f"print({line!r}, flush=True)", reports(DONE))
    assert operator().execute(task_context)["status"] == "written"


# Start.


def test_a_driver_inherits_neither_the_tasks_stdin_nor_its_process_group(
    spark: FakeSpark, task_context: dict[str, Any]
) -> None:
    spark.acts("assert os.getpgid(0) == os.getpid()", reports(DONE))
    # Airflow gives tasks a socket as standard input.
    kept, (ours, theirs) = os.dup(0), os.pipe()
    os.dup2(ours, 0)
    try:
        operator().execute(task_context)
    finally:
        os.dup2(kept, 0)
        for descriptor in (kept, ours, theirs):
            os.close(descriptor)
    [start] = spark.starts
    assert start["stdin"] == "/dev/null"
    assert "--discard-spec" in start["words"]
    # Nothing stays on the worker: neither the specification, with its credentials, nor the rest.
    assert [path for path in (Path(os.environ["TMPDIR"])).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("host", "code", "shipped"),
    [
        ("local[1]", None, []),
        ("spark://master:7077", None, ["delta_maintenance.zip"]),
        ("yarn", None, ["delta_maintenance.zip"]),
        ("spark://master:7077", {"py_files": ["s3://lake/l.zip"]}, ["l.zip"]),
        ("spark://master:7077", {"python": "/opt/env/bin/python"}, []),
    ],
)
def test_a_cluster_gets_the_library_unless_code_is_configured(
    spark: FakeSpark,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    code: dict[str, Any] | None,
    shipped: list[str],
) -> None:
    connect(monkeypatch, host=host)
    spark.acts(
        "if '--py-files' in words and words[words.index('--py-files') + 1][0] == '/':",
        "    assert os.path.getsize(words[words.index('--py-files') + 1]) > 100_000",
        reports(DONE),
    )
    operator(spark_code=code).execute(task_context)
    words = spark.starts[0]["words"]
    given = words[words.index("--py-files") + 1].split(",") if "--py-files" in words else []
    assert [os.path.basename(file) for file in given] == shipped
    assert ("spark.pyspark.python=/opt/env/bin/python" in words) is ("python" in (code or {}))


@pytest.mark.parametrize(
    "conf", [{"spark.driver.extraJavaOptions": "-javaagent:x"}, {"spark.x.password": "hush"}]
)
def test_properties_that_load_code_or_hold_secrets_fail_the_task(
    spark: FakeSpark, task_context: dict[str, Any], conf: dict[str, str]
) -> None:
    with pytest.raises(AirflowFailException, match="the Spark property") as caught:
        operator(spark_conf=conf).execute(task_context)
    assert spark.starts == [] and "hush" not in str(caught.value)


# Kills.


def test_a_kill_ends_the_driver_that_spark_submit_has_started(
    spark: FakeSpark, task_context: dict[str, Any], tmp_path: Path
) -> None:
    deaf = (
        "import os, signal, time; signal.signal(15, signal.SIG_IGN); "
        f"open({str(tmp_path / 'driver')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    spark.acts(
        "driver = subprocess.Popen([sys.executable, '-c', " + repr(deaf) + "])", "driver.wait()"
    )
    task = operator()

    def kill() -> None:
        wait_for(lambda: (tmp_path / "driver").exists() and (tmp_path / "driver").read_text())
        kill_until(ended, task)

    ended = threading.Event()
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises(AirflowException):
        task.execute(task_context)
    ended.set()
    killer.join()
    # It did not listen to SIGTERM.
    wait_for(lambda: not is_alive(int((tmp_path / "driver").read_text())))


def test_a_jumping_clock_does_not_shorten_the_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); "
    ready = f"open({str(tmp_path / 'ready')!r}, 'w').close(); "
    process = subprocess.Popen(
        [sys.executable, "-c", ends + ready + "time.sleep(600)"], start_new_session=True
    )
    wait_for((tmp_path / "ready").exists)
    # Time for a busy machine.
    monkeypatch.setattr("delta_maintenance_airflow.spark.folder._SECONDS_TO_END", 60.0)
    instants = itertools.count(step=1000)
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: float(next(instants)))
        end_group(process.pid, process.poll)
    assert process.wait(timeout=300) == 7


TASK = """\
import sys
sys.path[:0] = {path!r}
from unittest.mock import MagicMock
from delta_maintenance_airflow.operators import DeltaAddConstraintOperator
from delta_maintenance_airflow.operators import DeltaCheckpointOperator
ti = MagicMock(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0)
task = DeltaCheckpointOperator(task_id="task", **{arguments!r})
task.execute({{"ti": ti, "outlet_events": {{}}, "params": {{}}}})
"""


def orphaned(spark: FakeSpark, tmp_path: Path, **arguments: Any) -> None:
    """A first try that is killed with SIGKILL while its driver is running."""
    arguments = {"table_uri": "s3://lake/events", "engine": "spark", **arguments}
    code = TASK.format(path=sys.path, arguments=arguments)
    with (tmp_path / "task.log").open("wb") as log:
        task = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)
    wait_for(lambda: (tmp_path / "working").exists() or task.poll() is not None)
    assert task.poll() is None, (tmp_path / "task.log").read_text()
    # Long enough for its first line to be read.
    wait_for(lambda: list((tmp_path / "tmp").glob("*/*/driver")))
    task.send_signal(signal.SIGKILL)
    task.wait()


def works(tmp_path: Path, *lines: str) -> tuple[str, ...]:
    return (
        "print('at work', flush=True)",
        f"open({str(tmp_path / 'working')!r}, 'w').close()",
        *lines,
    )


# Second tries.


def test_the_result_of_an_earlier_driver_is_awaited_and_used(
    spark: FakeSpark, task_context: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"
    spark.acts(
        *works(
            tmp_path,
            f"while not os.path.exists({str(go)!r}): time.sleep(0.05)",
            # The reader of its lines has ended.
            "try: print('on and on', flush=True)",
            "except BrokenPipeError: pass",
            reports(DONE),
        )
    )
    orphaned(spark, tmp_path)
    [start] = spark.starts
    assert is_alive(start["pid"])
    caplog.set_level(logging.INFO)

    def is_awaited() -> bool:
        return any("still running" in message for message in caplog.messages)

    second = threading.Thread(target=lambda: (wait_for(is_awaited), go.touch()))
    second.start()
    outcome = operator().execute({**task_context, "ti": task_context["ti"]})
    second.join()
    assert outcome["status"] == "written"
    assert len(spark.starts) == 1


def test_a_kill_while_waiting_ends_the_driver_of_the_earlier_try(
    spark: FakeSpark, task_context: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spark.acts(*works(tmp_path, "time.sleep(600)"))
    orphaned(spark, tmp_path)
    caplog.set_level(logging.INFO)
    task = operator()

    def kill() -> None:
        wait_for(lambda: any("still running" in message for message in caplog.messages))
        task.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(AirflowException, match="killed before"):
        task.execute(task_context)
    killer.join()
    [start] = spark.starts
    wait_for(lambda: not is_alive(start["pid"]))


def test_a_driver_that_died_with_its_task_is_replaced(
    spark: FakeSpark, task_context: dict[str, Any], tmp_path: Path
) -> None:
    spark.acts(*works(tmp_path, "time.sleep(600)"))
    orphaned(spark, tmp_path)
    os.kill(spark.starts[0]["pid"], signal.SIGKILL)
    spark.acts(reports(DONE))
    assert operator().execute(task_context)["status"] == "written"
    assert len(spark.starts) == 2


@pytest.mark.parametrize("cleared", [False, True])
def test_a_report_of_an_earlier_try_is_enough_and_of_a_cleared_task_is_not(
    spark: FakeSpark, task_context: dict[str, Any], tmp_path: Path, cleared: bool
) -> None:
    (tmp_path / "reports").mkdir()
    task = operator(report_folder=f"{tmp_path}/reports")
    spark.acts(reports(DONE))
    task.execute(task_context)
    task_context["ti"].try_number += 1
    task_context["ti"].max_tries += cleared
    assert task.execute(task_context)["status"] == "written"
    assert len(spark.starts) == 1 + cleared


def test_another_request_of_the_same_task_is_another_job(
    spark: FakeSpark, task_context: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    spark.acts(reports(DONE))
    for kind in ("v2-json", "v2-parquet"):
        task = operator(report_folder=str(tmp_path / "reports"), options={"kind": kind})
        task.execute(task_context)
    assert len(spark.starts) == 2


def test_a_job_that_failed_or_did_a_part_is_done_again(
    spark: FakeSpark, task_context: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    task = operator(DeltaVacuumOperator, report_folder=str(tmp_path / "reports"))
    vacuumed = {"table": "s3://lake/events", "version": 9, "status": "partly", "failed": 1}
    vacuumed |= {"failures": ["a.parquet: no"]}
    # As of any library.
    error = JobError.of(RuntimeError("down")).to_json()
    spark.acts(reports({"status": "failed", "error": error}), "sys.exit(1)")
    with pytest.raises(Exception, match=r"down.*check the job's log; it is safe to run again"):
        task.execute(task_context)
    spark.acts(reports({"status": "done", "result": vacuumed}))
    with pytest.raises(Exception, match="1 file could not be deleted"):
        task.execute(task_context)
    spark.acts(reports({"status": "done", "result": {**vacuumed, "status": "vacuumed"}}))
    assert task.execute(task_context)["status"] == "vacuumed"
    assert len(spark.starts) == 3


def test_a_constraint_that_lost_a_race_is_retried(
    spark: FakeSpark, task_context: dict[str, Any], classic_table: TableBuilder, tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    task = DeltaAddConstraintOperator(
        task_id="task",
        table_uri=classic_table.store.root,
        name="natural",
        expression="abs(id) >= 0",
        report_folder=str(tmp_path / "reports"),
    )
    result = {"table": classic_table.store.root, "version": 1}
    lost = {**result, "status": "conflict", "problem": "another writer won"}
    spark.acts(reports({"status": "done", "result": lost}))
    with pytest.raises(CommitConflictError):
        task.execute(task_context)
    spark.acts(reports({"status": "done", "result": {**result, "status": "committed"}}))
    assert task.execute(task_context)["status"] == "committed"
    assert len(spark.starts) == 2


def test_a_folder_of_another_user_is_not_used(
    spark: FakeSpark, task_context: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "tmp" / f"delta-maintenance-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(AirflowFailException, match="not private"):
        operator().execute(task_context)
    assert spark.starts == []
