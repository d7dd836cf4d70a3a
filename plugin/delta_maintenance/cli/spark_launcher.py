"""Runs an operation as a PySpark job: starts spark-submit, relays what it says, reads its report.

The job is told what to do by a specification and answers by a report, both JSON files in a private
directory of this machine, where the driver runs too (client mode):

    {"operation": "checkpoint", "table": URI, "storage_options": {...}, "version": N,
     "options": {...}}
    {"result": {...}} or {"error": {"type": class name, "problem": ..., "table": ...,
     "version": ..., "file": ..., "remedy": ...}}

Credentials travel by neither: they reach the driver in its environment.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from delta_maintenance import errors
from delta_maintenance.cli.output import say
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError

JOB = Path(__file__).resolve().parent.parent / "spark" / "job.py"

_OWN_LINE = "delta-maintenance: "
"""How the lines begin that the job means for the user; all others are Spark's own."""
_GRACE_SECONDS = 10


def run_spark_job(
    operation: str, job: Mapping[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Runs a job to its end and returns the JSON of its Result.

    `job` is what the specification says beyond operation, table and storage options. Raises the
    error that the job reports; `DeltaMaintenanceError` with the last line of its log where it ended
    without a report; `InvalidRequestError` where there is no Spark to submit to.
    """
    spark_home = find_spark_home()
    options, secrets = split_secrets(arguments.table, dict(arguments.storage_options))
    spec = {
        "operation": operation,
        "table": absolute(arguments.table),
        "storage_options": options,
        **job,
    }
    with tempfile.TemporaryDirectory(prefix="delta-maintenance-") as directory:
        spec_file, report_file = Path(directory, "spec.json"), Path(directory, "report.json")
        spec_file.write_text(json.dumps(spec))
        command = [
            os.fspath(spark_home / "bin" / "spark-submit"),
            *(["--master", arguments.master] if arguments.master else []),
            *(word for key, value in arguments.spark_conf for word in ("--conf", f"{key}={value}")),
            os.fspath(JOB),
            *("--spec", f"@{spec_file}", "--report", os.fspath(report_file)),
        ]
        last_line = _run(command, _environment(spark_home, secrets), verbose=arguments.verbose)
        return _result(report_file, last_line)


def find_spark_home() -> Path:
    """SPARK_HOME, else the pyspark that this Python has, else an `InvalidRequestError`."""
    named = os.environ.get("SPARK_HOME")
    if named:
        home = Path(named)
        problem = f"SPARK_HOME is {named}, where there is no bin/spark-submit"
    else:
        # Found, not imported: that would take a second, and the job is another process anyway.
        package = importlib.util.find_spec("pyspark")
        home = Path(package.origin).parent if package and package.origin else Path()
        problem = "pyspark is not installed here and SPARK_HOME is not set"
    if not (home / "bin" / "spark-submit").is_file():
        raise InvalidRequestError(
            problem, remedy="install delta-maintenance[spark], or use --engine local"
        )
    return home


def absolute(address: str) -> str:
    """An address that means the same in every process of Spark's, wherever it runs."""
    return address if ":" in address.split("/", 1)[0] else os.path.abspath(address)


def split_secrets(
    table: str, given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Storage options without their secrets, and the environment variables that carry those.

    None stands for a variable that must not be inherited: it belongs to other credentials.
    """
    if not given:
        return {}, {}
    # Loads what speaks to object stores, which only a table on one needs.
    from delta_maintenance.storage.addresses import parse_options

    options = parse_options(table, given)
    return (options.public(), options.secrets()) if options is not None else (dict(given), {})


def _environment(spark_home: Path, secrets: Mapping[str, str | None]) -> dict[str, str]:
    environment = {
        **os.environ,
        "SPARK_HOME": os.fspath(spark_home),
        # The driver needs this Python's packages, ours among them.
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **{name: value for name, value in secrets.items() if value is not None},
    }
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in secrets.items():
        if value is None:
            environment.pop(name, None)
    return environment


def _run(command: Sequence[str], environment: Mapping[str, str], *, verbose: bool) -> str:
    """Runs the job, relays its lines to stderr and returns the last one."""
    tail: deque[str] = deque(maxlen=1)
    with _ended_with_us(
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    ) as process:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.rstrip()
            if line:
                tail.append(line)
            if line.startswith(_OWN_LINE):
                say(line.removeprefix(_OWN_LINE))
            elif verbose and line:
                say(f"spark: {line}")
        process.wait()
    return tail[0] if tail else "it said nothing"


@contextmanager
def _ended_with_us(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Ends the job when this process is interrupted or told to end: none is left behind."""

    def end(signum: int, _: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield process
    finally:
        signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _result(report_file: Path, last_line: str) -> dict[str, Any]:
    try:
        report = json.loads(report_file.read_text())
    except FileNotFoundError:
        # Only now: spark-env.sh may know a Java that is not to be seen from here.
        remedy = "run again with -v for its whole log"
        if not _has_java():
            remedy = f"install Java 17 or newer or set JAVA_HOME, else {remedy}"
        raise DeltaMaintenanceError(
            f"the Spark job ended without a report: {last_line}", remedy=remedy
        ) from None
    if "error" in report:
        raise _error(report["error"])
    result: dict[str, Any] = report["result"]
    return result


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(Path(home, "bin", "java") if home else "java") is not None


def _error(reported: Mapping[str, Any]) -> DeltaMaintenanceError:
    kind = getattr(errors, reported["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, DeltaMaintenanceError)):
        kind = DeltaMaintenanceError
    return kind(
        reported["problem"],
        table=reported.get("table"),
        version=reported.get("version"),
        file=reported.get("file"),
        remedy=reported.get("remedy"),
    )
