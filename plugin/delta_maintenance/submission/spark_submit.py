"""The `spark-submit` command of a job, and the environment and the process of its driver."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from delta_maintenance.dependencies import numbers_of
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.submission.job_report import DriverLine
from delta_maintenance.submission.job_spec import APPLICATION

OLDEST_SPARK = "3.5"
_YARN_APPLICATION = re.compile(r"\b(application_\d+_\d+)\b")
_POD = re.compile(r"\bpod name: ([a-z0-9.-]+)")
_NAMESPACE = re.compile(r"\bnamespace: ([a-z0-9-]+)")


def submit_command(
    spec: str,
    report: str,
    *,
    spark_submit: str = "spark-submit",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    py_files: Sequence[str] = (),
    archives: Sequence[str] = (),
    application: str | os.PathLike[str] = APPLICATION,
) -> list[str]:
    """Returns the words of a command that submits a job.

    `spec` is the value that `JobSpec.write` returned, or the JSON if it contains no credentials.
    `report` is the location of the report: a path on the driver's machine, or an address in the
    table's store.
    """
    return [
        spark_submit,
        *(["--master", master] if master else []),
        *(word for name, value in (conf or {}).items() for word in ("--conf", f"{name}={value}")),
        *(["--py-files", ",".join(py_files)] if py_files else []),
        *(["--archives", ",".join(archives)] if archives else []),
        os.fspath(application),
        *("--spec", spec, "--report", report),
    ]


def connect_command(
    spec: str, report: str, *, application: str | os.PathLike[str] = APPLICATION
) -> list[str]:
    """Returns the words of a command that runs a job in this Python, through Spark Connect.

    The environment contains the address of the server and its token: `driver_environment`.
    """
    return [sys.executable, os.fspath(application), "--spec", spec, "--report", report]


def find_spark_home(*, only_spark: str | None = None) -> Path:
    """Returns SPARK_HOME, or else the installed pyspark. Raises `InvalidRequestError`
    without both, and for a version that is too old.

    `only_spark` states why this process cannot do the work instead, as a clause.
    """
    spark_home = os.environ.get("SPARK_HOME")
    if spark_home:
        home = Path(spark_home)
        problem = f"SPARK_HOME is {spark_home}, which does not contain bin/spark-submit"
    else:
        # Located without importing it, which would take a second.
        package = importlib.util.find_spec("pyspark")
        home = Path(package.origin).parent if package and package.origin else Path()
        problem = "pyspark is not installed here and SPARK_HOME is not set"
    if not (home / "bin" / "spark-submit").is_file():
        remedy = "install delta-maintenance[spark]"
        if only_spark is None:
            remedy += ", or use --engine local"
        else:
            problem = f"{only_spark}, and {problem}"
        raise InvalidRequestError(problem, remedy=f"{remedy}, or set SPARK_HOME")
    if version := spark_version(home):
        require_spark(version, origin=os.fspath(home))
    return home


def driver_environment(
    environment: Mapping[str, str],
    *,
    secrets: Mapping[str, str | None] | None = None,
    remote: str | None = None,
) -> dict[str, str]:
    """Returns the environment of a driver on this machine, derived from that of this process.

    `secrets` are variables to set, or to remove if they are None; `remote` is the address of a
    Spark Connect server.
    """
    started = {
        "PYSPARK_PYTHON": sys.executable,
        **environment,
        # The driver needs the packages of this Python, including this library.
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    # Otherwise a submitted driver would become a client of that server.
    started.pop("SPARK_REMOTE", None)
    if remote is not None:
        started["SPARK_REMOTE"] = remote
    for name, value in (secrets or {}).items():
        if value is None:
            started.pop(name, None)
        else:
            started[name] = value
    return started


def require_spark(version: str, *, origin: str) -> None:
    """Raises `InvalidRequestError` for a version that is too old; `found` says where it is."""
    if numbers_of(version) < numbers_of(OLDEST_SPARK):
        raise InvalidRequestError(
            f"{origin} is Spark {version}, and the jobs need Spark {OLDEST_SPARK} or newer",
            remedy=f"install 'pyspark>={OLDEST_SPARK}', or choose a cluster with such a Spark",
        )


def spark_version(home: Path) -> str | None:
    """Returns the version of a SPARK_HOME, or of the package pyspark; None if it has none."""
    for file in (home / "version.py", home / "python" / "pyspark" / "version.py"):
        if file.is_file() and (match := re.search(r"['\"]([0-9][^'\"]*)['\"]", file.read_text())):
            return match[1]
    return None


@dataclass(kw_only=True)
class DriverProcess:
    """One run of `spark-submit`, or of a driver of Spark Connect, on this machine.

    If `run` ends early, the application is ended too: a local driver with its process, and a
    driver on a cluster by the means of the cluster.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    hear: Callable[[DriverLine], object]
    """Called with every line as it arrives, except empty ones."""
    grace_seconds: float
    """The time to end in, before the process is killed."""
    has_group: bool = True
    """Whether `spark-submit`, the JVM and the Python driver are a process group of their own, and
    end together. A process in the group of a terminal ends with the terminal.
    """
    on_cluster: bool = False
    master: str | None = None
    last_line: str = "it printed nothing"
    """To explain a failure."""
    _process: subprocess.Popen[str] | None = field(default=None, init=False)
    _application: str | None = field(default=None, init=False)
    _namespace: str = field(default="default", init=False)

    def run(self) -> int:
        """Runs to the end and returns the exit status."""
        self._process = subprocess.Popen(
            self.command,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=self.has_group,
        )
        with self._process.stdout as output:  # type: ignore[union-attr]  # a pipe
            try:
                for line in output:
                    self._read(DriverLine.read(line))
                return self._process.wait()
            finally:
                self.end()

    def end(self) -> None:
        """Ends a job that is still running."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        if self._application is not None:
            # Ending the client does not end the application on the cluster.
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    self._kill_command(self._application),
                    env=dict(self.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=2 * self.grace_seconds,
                )
        self._signal(process, signal.SIGTERM)
        try:
            process.wait(self.grace_seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Including processes of the group that outlived the main one.
            self._signal(process, signal.SIGKILL)
            process.kill()
            process.wait()

    def _read(self, line: DriverLine) -> None:
        if not line.text:
            return
        self.last_line = line.text
        if self.on_cluster:
            if match := _YARN_APPLICATION.search(line.text) or _POD.search(line.text):
                self._application = match[1]
            if match := _NAMESPACE.search(line.text):
                self._namespace = match[1]
        self.hear(line)

    def _kill_command(self, application: str) -> list[str]:
        if application.startswith("application_"):
            return ["yarn", "application", "-kill", application]
        master = ["--master", self.master] if self.master else []
        return [self.command[0], *master, "--kill", f"{self._namespace}:{application}"]

    def _signal(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        if not self.has_group:
            process.send_signal(number)
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


PACKAGE = Path(__file__).resolve().parent.parent
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_library(folder: Path) -> str:
    """Writes `library_zip` into a folder, and returns the path."""
    file = folder / "delta_maintenance.zip"
    file.write_bytes(library_zip())
    return os.fspath(file)


def library_zip() -> bytes:
    """A ZIP file of the package for `--py-files`: the same bytes for the same code.

    A wheel does not work: Spark adds `.zip` and `.egg` files to the path of its workers, and
    ignores a `.whl` file.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*")):
            if file.suffix in (".py", ".json") and file.is_file():
                name = file.relative_to(PACKAGE.parent).as_posix()
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
    return packed.getvalue()
