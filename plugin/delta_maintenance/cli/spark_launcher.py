"""Runs an operation as a PySpark job: starts it, relays its output, reads its report.

The specification and the report of the job are JSON files in a private directory of this machine,
where the driver runs as well (client mode); see `submission.job_spec` and `submission.job_report`.
Neither contains credentials: the driver receives them in its environment.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from delta_maintenance.address import Address
from delta_maintenance.cli.output import say
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.scratch import scratch_folder

if TYPE_CHECKING:
    from delta_maintenance.submission.job_report import DriverLine

_GRACE_SECONDS = 10


def run_spark_job(
    operation: str,
    job: Mapping[str, Any],
    arguments: argparse.Namespace,
    *,
    only_spark: str | None = None,
) -> dict[str, Any]:
    """Runs a job to its end and returns the JSON of its Result.

    `job` contains the fields of the specification besides operation, table and storage options.
    `only_spark` is that of the record, for the message where Spark is missing. Raises the error
    that the job reports, `DeltaMaintenanceError` with the last line of its log if it ended without
    a report, and `InvalidRequestError` if Spark is not available.
    """
    # Loads pydantic, which `--help` does not need.
    from delta_maintenance.submission.configuration import (
        require_no_credentials_in_addresses,
        require_no_secrets,
    )
    from delta_maintenance.submission.job_spec import JobSpec
    from delta_maintenance.submission.spark_submit import (
        connect_command,
        driver_environment,
        find_spark_home,
        submit_command,
    )

    conf = dict(arguments.spark_conf)
    require_no_secrets(conf)
    options, secrets = split_secrets(arguments.table, dict(arguments.storage_options))
    spec = JobSpec.of(operation, arguments.table, storage_options=options, **job)
    remote = _remote(arguments.master)
    require_no_credentials_in_addresses({"the master": arguments.master})
    environment = driver_environment(os.environ, secrets=secrets, remote=remote)
    with scratch_folder() as directory:
        spec_file, report_file = directory / "spec.json", directory / "report.json"
        files = (spec.write(spec_file), os.fspath(report_file))
        if remote is not None:
            if conf:
                raise InvalidRequestError(
                    "Spark properties cannot be sent to a Spark Connect server",
                    remedy="omit --spark-conf, or set the properties when the server is started",
                )
            command = connect_command(*files)
        else:
            home = find_spark_home(only_spark=only_spark)
            environment["SPARK_HOME"] = os.fspath(home)
            command = submit_command(
                *files,
                spark_submit=os.fspath(home / "bin" / "spark-submit"),
                master=arguments.master,
                conf=conf,
                py_files=_py_files(directory, arguments.master),
            )
        last_line = _run(command, environment, verbose=arguments.verbose)
        return _result(report_file, last_line, needs_java=remote is None)


def missing_spark(arguments: argparse.Namespace, *, only_spark: str | None) -> str | None:
    """Returns why a job could not be started here, with the remedy; None if it could."""
    from delta_maintenance.submission.spark_submit import find_spark_home

    if _remote(arguments.master) is not None:
        return None
    try:
        find_spark_home(only_spark=only_spark)
    except InvalidRequestError as error:
        return str(error)
    return None


def _remote(master: str | None) -> str | None:
    """Returns the Spark Connect server of the command line or the environment."""
    if master is None:
        return os.environ.get("SPARK_REMOTE")
    if not master.startswith("sc://"):
        return None
    if "token=" in master:
        raise InvalidRequestError(
            "the token for Spark Connect is a secret, and other users can read command lines",
            remedy="set SPARK_REMOTE to the address with its token, and omit --master",
        )
    return master


def _py_files(directory: Path, master: str | None) -> list[str]:
    """Writes an archive of this library, so that executors run the same code as the driver."""
    from delta_maintenance.submission.spark_submit import write_library

    is_local = master is not None and master.startswith("local")
    return [] if is_local else [write_library(directory)]


def absolute(address: str) -> str:
    """Returns an address that means the same in every Spark process."""
    return str(Address.parse(address).absolute())


def split_secrets(
    table: str, storage_options: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Separates storage options into public ones and environment variables for the secret ones.

    None marks a variable that must not be inherited, because it belongs to other credentials.
    """
    if not storage_options:
        return {}, {}
    # Loads the clients of object stores, which only tables on them need.
    from delta_maintenance.storage.options import parse_options

    options = parse_options(table, storage_options)
    return (
        (options.public(), options.secrets())
        if options is not None
        else (dict(storage_options), {})
    )


def _run(command: Sequence[str], environment: Mapping[str, str], *, verbose: bool) -> str:
    """Runs the job, relays its lines to stderr and returns the last one. Ends it if this process is
    interrupted or terminated, so that no job is left behind.
    """
    from delta_maintenance.submission.spark_submit import DriverProcess

    process = DriverProcess(
        command=command,
        environment=environment,
        hear=partial(_relay, verbose=verbose),
        grace_seconds=_GRACE_SECONDS,
        has_group=False,
    )
    # The process does not wait for its other threads when it ends.
    atexit.register(process.end)
    try:
        with ended_by_sigterm():
            process.run()
    finally:
        atexit.unregister(process.end)
    return process.last_line


def _relay(line: DriverLine, *, verbose: bool) -> None:
    if line.message is not None:
        say(line.message)
    elif line.interface is not None:
        say(f"Spark UI: {line.interface}")
    elif verbose:
        say(f"spark: {line.text}")


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Ends this process at its end in the usual way if it is terminated during the block. Only the
    main thread can see to that.
    """

    def end(signum: int, _: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _result(report_file: Path, last_line: str, *, needs_java: bool) -> dict[str, Any]:
    from delta_maintenance.submission.job_report import read_report

    try:
        return read_report(report_file).timed_result_or_raise()
    except FileNotFoundError:
        # Checked only now, because spark-env.sh may set a Java that this process does not know.
        remedy = "run again with -v for its whole log"
        if needs_java and not _has_java():
            remedy = f"install Java 17 or newer or set JAVA_HOME, else {remedy}"
        raise DeltaMaintenanceError(
            f"the Spark job ended without a report: {last_line}", remedy=remedy
        ) from None


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(Path(home, "bin", "java") if home else "java") is not None
