"""The job as it is submitted: on a standalone cluster, with the library shipped along, and through
Spark Connect."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from sidecar_rows import sidecar_rows

import delta_maintenance
from delta_maintenance import open_table
from delta_maintenance.operations.checkpoint import CheckpointResult
from delta_maintenance.spark.submit import JobReport, JobSpec, read_report, submit_command
from delta_maintenance.testing.actions import add, features, metadata, remove
from delta_maintenance.testing.s3_server import S3Server, serve_s3
from delta_maintenance.testing.table_builder import TableBuilder

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("java")]

SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE_SECONDS = 60
# Short lives: compiling costs more than it brings.
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Cluster:
    """A master and two workers of one core each, on the loopback interface."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        self._environment = {
            # The credentials of whoever starts the cluster are none of the job's.
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
        }
        self._start("master", "Master", "--port", str(port), says="New state: ALIVE")
        for name in ("worker-1", "worker-2"):
            work = ("--work-dir", str(folder / name), "--cores", "1", "--memory", "512m")
            self._start(name, "Worker", *work, self.master, says="Successfully registered")

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait(timeout=30)

    def submit(
        self, spec: JobSpec, name: str, environment: dict[str, str], py_files: list[str]
    ) -> JobReport:
        """Runs a job; its output stays in a file for whoever looks into a failure."""
        report = self._folder / f"{name}.json"
        command = submit_command(
            spec.write(self._folder / f"{name}.spec.json"),
            str(report),
            spark_submit=str(SPARK_HOME / "bin" / "spark-submit"),
            master=self.master,
            conf=SETTINGS,
            py_files=py_files,
        )
        with (self._folder / f"{name}.log").open("wb") as log:
            done = subprocess.run(
                command,
                env={**self._environment, **environment},
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=300,
            )
        output = Path(log.name).read_text()
        assert report.exists(), output
        told = read_report(report)
        assert done.returncode == told.exit_status, output
        assert output.splitlines()[-1] == f"DELTA_MAINTENANCE_REPORT {report.read_text()}"
        return told

    def executors(self) -> list[int]:
        """How many executors each worker has started so far."""
        return [
            len(list((self._folder / name).glob("app-*/*"))) for name in ("worker-1", "worker-2")
        ]

    def _start(self, name: str, kind: str, *arguments: str, says: str) -> None:
        log = self._folder / f"{name}.log"
        daemon = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        common = ("--host", "127.0.0.1", "--webui-port", "0")
        with log.open("wb") as out:
            self._daemons.append(
                subprocess.Popen(
                    [str(SPARK_HOME / "bin" / "spark-class"), daemon, *common, *arguments],
                    env=self._environment,
                    cwd=self._folder,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while says not in log.read_text():
            assert self._daemons[-1].poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with everything that this one has, but for editable installs: ours is one."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(ours))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def py_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library as a ZIP file, to be shipped."""
    package = Path(delta_maintenance.__file__).parent
    return shutil.make_archive(
        str(tmp_path_factory.mktemp("shipped") / "library"), "zip", package.parent, package.name
    )


@pytest.fixture(scope="module")
def cluster(
    java: None, bare_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"), bare_python)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serve_s3() as server:
        yield server


def neglected(path: Path) -> TableBuilder:
    table = TableBuilder(path)
    table.commit([features("v2Checkpoint"), metadata()])
    for commit in range(6):
        table.commit([add(f"{commit}-{n}", stats='{"numRecords":1}') for n in range(100)])
    table.commit([remove(f"3-{n}", deletionTimestamp=1 << 43) for n in range(10)])
    return table


def job(table: str, **storage_options: str) -> JobSpec:
    options = {"kind": "v2-json", "actions_per_sidecar": 100}
    return JobSpec(
        operation="checkpoint", table=table, storage_options=storage_options, options=options
    )


def check(told: JobReport, table: delta_maintenance.Table, like: TableBuilder) -> None:
    result = CheckpointResult.from_json(told.result_or_raise())
    assert (result.status, result.engine) == ("written", "spark")
    assert (result.num_files, result.num_tombstones) == (590, 10)
    assert result.sidecars >= 6
    snapshot = table.snapshot()
    assert snapshot.checkpoint is not None and snapshot.segment.tail == ()
    expected = like.open().snapshot().live_files().sort_by("path")
    assert snapshot.live_files().sort_by("path") == expected
    assert sum(sidecar_rows(table, result.version).values()) == 600


def test_a_cluster_with_the_library_shipped_along(
    cluster: Cluster, py_file: str, tmp_path: Path
) -> None:
    neglected(tmp_path / "table")
    like = neglected(tmp_path / "like")
    before = cluster.executors()
    told = cluster.submit(job(str(tmp_path / "table")), "local", {}, [py_file])
    check(told, open_table(str(tmp_path / "table")), like)
    assert all(more > less for more, less in zip(cluster.executors(), before, strict=True))


def test_executors_reach_s3_with_what_the_driver_has(
    cluster: Cluster, py_file: str, s3: S3Server, tmp_path: Path
) -> None:
    like = neglected(tmp_path / "like")
    s3.make_bucket("cluster")
    for name in like.names():
        s3.fill("cluster", [f"table/_delta_log/{name}"], like.read(name))
    public, secret = dict(s3.storage_options), {}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        secret[name] = public.pop(name)
    told = cluster.submit(job("s3://cluster/table", **public), "s3", secret, [py_file])
    check(told, open_table("s3://cluster/table", s3.storage_options), like)


def test_a_job_that_cannot_be_done_says_why(cluster: Cluster, py_file: str, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "table")
    table.commit([features("v2Checkpoint", "fromTheFuture"), metadata()])
    told = cluster.submit(job(str(tmp_path / "table")), "refused", {}, [py_file])
    assert (told.status, told.exit_status) == ("refused", 3)


CONNECT = """
import json, sys, warnings
warnings.simplefilter("ignore", FutureWarning)
from pyspark.sql import SparkSession
from delta_maintenance.spark.job import run
from delta_maintenance.spark.submit import JobReport, JobSpec
session = SparkSession.builder.remote("local[2]")
for name, value in json.loads(sys.argv[2]).items():
    session = session.config(name, value)
spark = session.getOrCreate()
assert "connect" in type(spark).__module__
spark.addArtifacts(sys.argv[3], pyfile=True)
result = run(JobSpec.from_json(json.loads(sys.argv[1])), spark)
print(json.dumps(JobReport(status="done", result=result).to_json()))
spark.stop()
"""


def test_spark_connect_needs_nothing_of_the_jvm(
    bare_python: Path, py_file: str, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="NO SPARK CONNECT: its client needs grpcio")
    neglected(tmp_path / "table")
    like = neglected(tmp_path / "like")
    environment = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(bare_python),
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {**SETTINGS, "spark.local.connect.server.port": str(port)}
    spec = json.dumps(job(str(tmp_path / "table")).to_json())
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, spec, json.dumps(settings), py_file],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = JobReport.from_json(json.loads(done.stdout.splitlines()[-1]))
    check(told, open_table(str(tmp_path / "table")), like)
