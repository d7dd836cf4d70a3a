"""Processes of Spark on this machine: a standalone cluster, and a server of Spark Connect."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

from delta_maintenance.submission import JobReport, JobSpec, read_report, submit_command
from tests.support.servers.endings import end_process
from tests.support.servers.ports import free_port

SPARK_HOME = Path(pyspark.__file__).parent
JARS = SPARK_HOME / "jars"
PATIENCE_SECONDS = 480
# Short-lived processes: compiling costs more than it saves.
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
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._environment = {
            **environment_without_credentials(),
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
            end_process(daemon)

    def submit(
        self,
        spec: JobSpec,
        name: str,
        environment: Mapping[str, str],
        py_files: list[str],
        archives: list[str] | None = None,
        *,
        conf: Mapping[str, str] | None = None,
    ) -> JobReport:
        """Runs a job; its output is kept in a file for the analysis of failures."""
        report = self.folder / f"{name}.json"
        command = submit_command(
            spec.write(self.folder / f"{name}.spec.json"),
            str(report),
            spark_submit=str(SPARK_HOME / "bin" / "spark-submit"),
            master=self.master,
            conf={**SETTINGS, **(conf or {})},
            py_files=py_files,
            archives=archives or [],
        )
        with (self.folder / f"{name}.log").open("wb") as log:
            done = subprocess.run(
                command,
                env={**self._environment, **environment},
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=540,
                text=True,
            )
        output = f"{Path(log.name).read_text()}\n{done.stdout}"
        assert report.exists(), output
        told = read_report(report)
        assert done.returncode == told.exit_status, output
        assert done.stdout.splitlines()[-1] == f"DELTA_MAINTENANCE_REPORT {report.read_text()}"
        return told

    def executors(self) -> list[int]:
        """Returns how many executors each worker has started so far."""
        return [
            len(list((self.folder / name).glob("app-*/*"))) for name in ("worker-1", "worker-2")
        ]

    def executor_writing_to(self, folder: Path) -> int | None:
        """The process of an executor of which a Python worker has a file open in a folder."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                opened = [os.readlink(file) for file in (process / "fd").iterdir()]
            except OSError:
                continue
            if any(name.startswith(f"{folder}/") for name in opened):
                return self._executor_above(int(process.name))
        return None

    def _executor_above(self, process: int) -> int | None:
        while process > 1:
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in command:
                return process
            status = Path(f"/proc/{process}/stat").read_text()
            process = int(status.rpartition(")")[2].split()[1])
        return None

    def _start(self, name: str, kind: str, *arguments: str, says: str) -> None:
        log = self.folder / f"{name}.log"
        daemon = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        common = ("--host", "127.0.0.1", "--webui-port", "0")
        with log.open("wb") as out:
            self._daemons.append(
                subprocess.Popen(
                    [str(SPARK_HOME / "bin" / "spark-class"), daemon, *common, *arguments],
                    env=self._environment,
                    cwd=self.folder,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while says not in log.read_text():
            assert self._daemons[-1].poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


class ConnectUnavailable(Exception):
    """Spark 3.5 does not include the server, and its jars cannot be downloaded."""


class ConnectServer:
    """A server of Spark Connect on the loopback interface, with two cores.

    Raises `ConnectUnavailable`.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        port = free_port()
        self.address = f"sc://127.0.0.1:{port}"
        self._log = folder / "server.log"
        settings = {**SETTINGS, "spark.connect.grpc.binding.port": str(port)}
        settings["spark.connect.grpc.binding.address"] = "127.0.0.1"
        command = [
            str(SPARK_HOME / "bin" / "spark-submit"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", "local[2]"),
            *(word for item in settings.items() for word in ("--conf", "=".join(item))),
            *(() if any(JARS.glob("spark-connect_*")) else ("--packages", _connect())),
            "spark-internal",
        ]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                env={**environment_without_credentials(), "PYSPARK_PYTHON": str(python)},
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _is_open(port):
            if self._process.poll() is not None and "unresolved dep" in self._log.read_text():
                raise ConnectUnavailable
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.1)

    def close(self) -> None:
        end_process(self._process)


def _connect() -> str:
    """Returns the Maven coordinates of the server of Spark 3.5; one for all its releases, because
    mirrors lack some.
    """
    [library] = JARS.glob("scala-library-*.jar")
    scala = ".".join(library.stem.split("-")[-1].split(".")[:2])
    return f"org.apache.spark:spark-connect_{scala}:3.5.7"


def environment_without_credentials() -> dict[str, str]:
    """Jobs must not use the credentials of the process that starts Spark."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**inherited, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
