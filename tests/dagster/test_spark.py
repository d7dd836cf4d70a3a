"""Spark jobs of a run: submission, reports and termination."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.policies.definition.rules import SparkRule
from delta_maintenance.submission import DriverLine, DriverProcess, JobSpec
from delta_maintenance_dagster import DeltaSparkResource
from delta_maintenance_dagster.spark_resource import SparkDrivers
from tests.support.markdown import markdown_rows
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.table_builder import TableBuilder

Load = Callable[..., dg.Definitions]
OP = "lake__events__maintenance"
JAVA = os.path.join(os.environ["JAVA_HOME"], "bin/java") if "JAVA_HOME" in os.environ else "java"

SUBMIT = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
with open({seen!r}, "w") as file:
    json.dump({{"words": words, "environment": dict(os.environ)}}, file)
told = words[words.index("--spec") + 1]
spec = json.loads(open(told[1:]).read() if told.startswith("@") else told)
with open({seen!r} + ".spec", "w") as file:
    json.dump(spec, file)
print("WARN Utils: noise of Spark", flush=True)
print('DELTA_MAINTENANCE_APPLICATION {{"id": "app-1", "url": "http://driver:4040"}}', flush=True)
print("delta-maintenance: half way", flush=True)
{body}
"""
REPORT = """
with open(words[words.index("--report") + 1], "w") as file:
    json.dump({answer}, file)
"""


class Spark:
    """A Spark whose spark-submit does what the test says."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self._seen = folder / "seen.json"
        (folder / "bin").mkdir(parents=True)

    def answers(self, answer: dict[str, Any] | None = None, *, body: str = "") -> None:
        script = self.home / "bin" / "spark-submit"
        report = REPORT.format(answer=answer) if answer is not None else ""
        script.write_text(
            SUBMIT.format(python=sys.executable, seen=str(self._seen), body=body + report)
        )
        script.chmod(script.stat().st_mode | stat.S_IEXEC)

    @property
    def words(self) -> list[str]:
        words: list[str] = json.loads(self._seen.read_text())["words"]
        return words

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = json.loads(Path(f"{self._seen}.spec").read_text())
        return spec


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path / "spark")


def context() -> Any:
    return dg.build_asset_context()


def spec(**fields: Any) -> JobSpec:
    return JobSpec(operation="checkpoint", table="/lake/events", **fields)


def run_job(resource: DeltaSparkResource, given: JobSpec | None = None, **rule: Any) -> Any:
    return resource.run_job(
        given or spec(),
        rule=SparkRule.model_validate(rule),
        context=context(),
        drivers=SparkDrivers(),
    )


def test_a_job_answers_by_its_report(spark: Spark) -> None:
    spark.answers({"status": "done", "result": {"version": 3}})
    resource = DeltaSparkResource(
        spark_home=str(spark.home), master="spark://spark:7077", conf={"spark.cores.max": "2"}
    )
    assert run_job(resource, master="yarn", conf={"spark.executor.memory": "4g"}) == {"version": 3}
    assert spark.words[:6] == [
        "--master",
        "yarn",
        "--conf",
        "spark.cores.max=2",
        "--conf",
        "spark.executor.memory=4g",
    ]
    assert spark.spec["operation"] == "checkpoint"


def test_the_error_of_a_job_is_raised_as_it_was(spark: Spark) -> None:
    spark.answers(
        {
            "status": "failed",
            "error": {
                "type": "CommitConflictError",
                "message": "m",
                "exit_status": 4,
                "retryable": True,
                "problem": "another writer won",
            },
        },
        body="",
    )
    with pytest.raises(DeltaMaintenanceError, match="another writer won") as caught:
        run_job(DeltaSparkResource(spark_home=str(spark.home)))
    assert caught.value.retryable


def test_a_job_without_a_report_quotes_its_last_line(spark: Spark) -> None:
    spark.answers(body="print('java.lang.OutOfMemoryError: heap'); sys.exit(3)")
    with pytest.raises(DeltaMaintenanceError, match="status 3 .*OutOfMemoryError"):
        run_job(DeltaSparkResource(spark_home=str(spark.home)))


def test_lines_of_spark_are_shown_without_credentials(
    spark: Spark, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in ("s3://AKIA1:canary@lake/t", "delta-maintenance: az://data/t?sig=canary"):
        spark.answers(body=f"print({line!r}); sys.exit(3)")
        with pytest.raises(DeltaMaintenanceError, match=r"without a report: .*\*\*\*") as failure:
            run_job(DeltaSparkResource(spark_home=str(spark.home)))
        assert "canary" not in str(failure.value) + "".join(capfd.readouterr())


def test_job_output_is_logged_in_the_run(spark: Spark, capfd: pytest.CaptureFixture[str]) -> None:
    spark.answers({"status": "done", "result": {}})
    run_job(DeltaSparkResource(spark_home=str(spark.home)))
    said = capfd.readouterr().err
    assert "half way" in said
    assert "Spark application app-1: http://driver:4040" in said
    assert "noise of Spark" in said
    assert "delta-maintenance: half way" not in said


def test_credentials_are_not_in_the_command(spark: Spark) -> None:
    spark.answers({"status": "done", "result": {}})
    secret = spec(storage_options={"AWS_SECRET_ACCESS_KEY": "hush"})
    run_job(DeltaSparkResource(spark_home=str(spark.home)), secret)
    assert "hush" not in " ".join(spark.words)
    assert spark.spec["storage_options"] == {"AWS_SECRET_ACCESS_KEY": "hush"}


def test_a_driver_on_a_cluster_is_given_no_credentials(spark: Spark, tmp_path: Path) -> None:
    spark.answers(
        {"status": "done", "result": {"version": 1}}, body="words[words.index('--report') + 1]"
    )
    resource = DeltaSparkResource(
        spark_home=str(spark.home),
        master="yarn",
        deploy_mode="cluster",
        report_folder=str(tmp_path),
    )
    secret = JobSpec(
        operation="checkpoint",
        table="s3://lake/events",
        storage_options={
            "AWS_SECRET_ACCESS_KEY": "hush",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_REGION": "r",
        },
    )
    assert run_job(resource, secret) == {"version": 1}
    assert "hush" not in " ".join(spark.words)
    assert "spark.submit.deployMode=cluster" in spark.words
    assert spark.spec["storage_options"] == {"region": "r"}


def test_reports_of_two_tries_have_two_names(spark: Spark, tmp_path: Path) -> None:
    spark.answers({"status": "done", "result": {}})
    resource = DeltaSparkResource(spark_home=str(spark.home), report_folder=str(tmp_path))
    run_job(resource)
    first = spark.words[-1]
    run_job(resource)
    assert spark.words[-1] != first
    assert Path(first).parent == tmp_path


@pytest.mark.parametrize(
    ("resource", "rule", "said"),
    [
        ({"deploy_mode": "cluster"}, {}, "report_folder"),
        ({"deploy_mode": "cluster", "pipes": True}, {}, "Pipes"),
        ({"deploy_mode": "clustr"}, {}, "not a deploy mode"),
        ({"conf": {"spark.hadoop.fs.s3a.secret.key": "x"}}, {}, "secret"),
        ({"master": "sc://spark", "conf": {"spark.cores.max": "1"}}, {}, "Spark Connect"),
    ],
)
def test_invalid_settings_are_refused_before_a_start(
    spark: Spark, resource: dict[str, Any], rule: dict[str, Any], said: str
) -> None:
    spark.answers({"status": "done", "result": {}})
    with pytest.raises(InvalidRequestError, match=said):
        run_job(DeltaSparkResource(spark_home=str(spark.home), **resource), **rule)
    assert not (spark.home / "seen.json").exists()


def test_spark_connect_is_a_driver_of_this_python(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "driver.json"
    script = tmp_path / "driver.py"
    script.write_text(
        "import json, os, sys\n"
        f"json.dump(os.environ['SPARK_REMOTE'], open({str(seen)!r}, 'w'))\n"
        "json.dump({'status': 'done', 'result': {}}, open(sys.argv[-1], 'w'))\n"
    )
    monkeypatch.setenv("SPARK_TOKEN_URL", "sc://spark:15002/;token=hush")
    resource = DeltaSparkResource(remote=dg.EnvVar("SPARK_TOKEN_URL"), application=str(script))
    run_job(resource.process_config_and_initialize())
    assert json.loads(seen.read_text()) == "sc://spark:15002/;token=hush"


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """One whose checkpoints Spark can write: with sidecars."""
    builder = TableBuilder(tmp_path / "lake" / "events")
    builder.commit([features("v2Checkpoint"), metadata()])
    for number in range(9):
        builder.commit([add(f"{number}.parquet")])
        builder.store.put(f"{number}.parquet", b"x")
    return builder


@pytest.fixture
def left_behind(tmp_path: Path) -> Iterator[Path]:
    """The file in which a driver writes its process ID; the driver is ended in any case."""
    file = tmp_path / "driver.pid"
    yield file
    if file.exists() and alive(int(file.read_text())):
        os.kill(int(file.read_text()), signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for(condition: Callable[[], bool], *, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.05)


def driver_of(left_behind: Path, *, stubborn: bool = False) -> str:
    """A spark-submit that starts a driver, like the real one, and waits for it."""
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
    code = f"{ignore}import time; time.sleep(600)"
    return (
        "import subprocess\n"
        f"driver = subprocess.Popen([sys.executable, '-c', {code!r}])\n"
        f"open({str(left_behind)!r} + '.new', 'w').write(str(driver.pid))\n"
        f"os.replace({str(left_behind)!r} + '.new', {str(left_behind)!r})\n"
        "driver.wait()\n"
    )


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interrupt_ends_the_driver_with_its_submitter(
    spark: Spark, left_behind: Path, stubborn: bool
) -> None:
    spark.answers(body=driver_of(left_behind, stubborn=stubborn))

    def hear(line: DriverLine) -> None:
        if "half way" in line.text:
            wait_for(left_behind.exists)
            raise KeyboardInterrupt

    process = DriverProcess(
        command=[str(spark.home / "bin" / "spark-submit"), "--spec", "{}"],
        environment=os.environ,
        hear=hear,
        grace_seconds=1,
    )
    with pytest.raises(KeyboardInterrupt):
        process.run()
    wait_for(lambda: not alive(int(left_behind.read_text())))


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "INFO Client: Submitted application application_1690000000000_0007",
            ["yarn", "application", "-kill", "application_1690000000000_0007"],
        ),
        (
            "\\t pod name: delta-maintenance-driver\\n\\t namespace: spark",
            ["spark-submit", "--master", "k8s://x", "--kill", "spark:delta-maintenance-driver"],
        ),
    ],
)
def test_an_interrupt_ends_the_application_on_a_cluster(
    tmp_path: Path, line: str, command: list[str]
) -> None:
    seen = tmp_path / "killed.json"
    for name in ("yarn", "spark-submit"):
        script = tmp_path / name
        script.write_text(
            f"#!{sys.executable}\nimport json, sys, time\n"
            "if '-kill' in sys.argv or '--kill' in sys.argv:\n"
            f"    json.dump(sys.argv[1:], open({str(seen)!r}, 'w')); sys.exit()\n"
            f"print('{line}', flush=True); print('go on', flush=True); time.sleep(600)\n"
        )
        script.chmod(0o755)

    def hear(line: DriverLine) -> None:
        if line.text == "go on":
            raise KeyboardInterrupt

    process = DriverProcess(
        command=[str(tmp_path / "spark-submit")],
        environment={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        hear=hear,
        grace_seconds=1,
        on_cluster=True,
        master="k8s://x",
    )
    with pytest.raises(KeyboardInterrupt):
        process.run()
    assert json.loads(seen.read_text()) == command[1:]


@pytest.mark.parametrize(
    "engine", ["{'prefer': 'spark'}", "{'spark_log_bytes': 0}"], ids=["alone", "beside"]
)
def test_terminating_a_run_ends_its_spark_application(
    spark: Spark, left_behind: Path, tmp_path: Path, table: TableBuilder, engine: str
) -> None:
    """A run in a separate process, as a launcher starts it, that is terminated. A table that uses
    Spark only because of its size shares a step with others.
    """
    spark.answers(body=driver_of(left_behind))
    shutil.copytree(table.store.root, tmp_path / "idle")
    script = tmp_path / "run.py"
    script.write_text(
        "import dagster as dg\n"
        "from dagster.components.testing.utils import component_defs\n"
        "from delta_maintenance_dagster import DeltaMaintenanceComponent\n"
        "component = DeltaMaintenanceComponent.from_attributes_dict(attributes={\n"
        f"    'tables': [{{'uri': {table.store.root!r}, 'key': 'lake/events',\n"
        "                'checkpoint': {'max_commits': 1, 'kind': 'v2-json'},\n"
        f"                'engine': {engine}}},\n"
        f"               {{'uri': {str(tmp_path / 'idle')!r}, 'key': 'lake/idle'}}],\n"
        f"    'spark': {{'spark_home': {str(spark.home)!r}}}}})\n"
        "job = component_defs(component=component).resolve_job_def('delta_maintenance')\n"
        "job.execute_in_process()\n"
    )
    log = tmp_path / "run.log"
    with log.open("w") as said:
        run = subprocess.Popen([sys.executable, str(script)], stderr=said)
    try:
        wait_for(lambda: left_behind.exists() or run.poll() is not None)
        assert run.poll() is None, log.read_text()[-5000:]
        driver = int(left_behind.read_text())
        assert alive(driver)
        # The launcher's worker converts a termination to this signal.
        run.send_signal(signal.SIGINT)
        run.wait(timeout=200)
    finally:
        run.kill()
    assert run.returncode != 0
    # Dagster may raise the interrupt in its own code while the other table is recorded.
    assert "prefer" not in engine or "the run was terminated" in log.read_text()
    wait_for(lambda: not alive(driver))


@pytest.mark.spark
@pytest.mark.skipif(shutil.which(JAVA) is None, reason="NO JAVA: set JAVA_HOME to Java 17 or newer")
@pytest.mark.parametrize("pipes", [False, True])
def test_a_checkpoint_by_a_real_spark(
    table: TableBuilder,
    load: Load,
    instance: dg.DagsterInstance,
    pipes: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    rules = {"checkpoint": {"max_commits": 5, "kind": "v2-json"}, "engine": {"prefer": "spark"}}
    definitions = load(
        tables=[{"uri": table.store.root, "key": "lake/events", **rules}],
        spark={
            "master": "local[1]",
            "conf": {"spark.ui.enabled": "false", "spark.driver.memory": "1g"},
            "pipes": pipes,
        },
    )
    job = definitions.resolve_job_def("delta_maintenance")
    result = job.execute_in_process(instance=instance)
    (event,) = result.asset_materializations_for_node(OP)
    (operation,) = markdown_rows(str(event.metadata["operations"].value))
    assert operation["engine"] == "spark"
    assert operation["status"].startswith("done, ")
    assert [name for name in table.names() if "checkpoint" in name]
    said = capfd.readouterr().err
    # Through Pipes or through the output.
    assert said.count("version 9: ") >= 1
    assert "Spark application local-" in said
