"""What a Spark job is told and what it answers, and the command that submits one.

Knows neither Spark nor an orchestrator: whoever can run `spark-submit`, or start a Python file with
arguments on a cluster, can run a job. `python -m delta_maintenance.spark.job --help` says the same
from the other side.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from delta_maintenance import errors
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.record import Record

APPLICATION = Path(__file__).resolve().with_name("job.py")
"""The file to submit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Record):
    """One operation on one table."""

    operation: Literal["checkpoint", "backfill-row-ids", "add-constraint", "fsck", "vacuum"]
    table: str
    """An address that the driver and every executor reach."""
    version: int | None = None
    """The version to work on; None takes the latest, as operations that commit always do."""
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    """Of the table's store. May hold credentials: see `write`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of the operation's Options. The engine is Spark, unless they name another."""
    report_uri: str | None = None
    """A new Parquet file for the whole list that the Result has the beginning of; with the storage
    options of the table, and outside of it."""
    plan_only: bool = False
    """For a vacuum: answer with the Plan, and delete nothing."""

    def write(self, path: str | os.PathLike[str]) -> str:
        """Writes the specification to a file that only this user can read; returns `@PATH`.

        Arguments stand in the process list and in the logs of orchestrators, so a specification
        with credentials never goes there.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            json.dump(self.to_json(), file)
        return f"@{os.fspath(path)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError(Record):
    """The error that ended a job."""

    type: str
    """The name of its class."""
    message: str
    """One line that tells the whole story."""
    exit_status: int
    retryable: bool
    problem: str
    table: str | None = None
    version: int | None = None
    file: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, error: Exception) -> JobError:
        """Any error; those that are not of this library keep their name and their text."""
        if not isinstance(error, DeltaMaintenanceError):
            name = type(error).__name__
            error = DeltaMaintenanceError(
                f"{name}: {_gist(error)}", remedy="look at the job's log; it is safe to run again"
            )
        else:
            name = type(error).__name__
        return cls(
            type=name,
            message=str(error),
            exit_status=error.exit_status,
            retryable=error.retryable,
            problem=error.problem,
            table=error.table,
            version=error.version,
            file=error.file,
            remedy=error.remedy,
        )

    def to_error(self) -> DeltaMaintenanceError:
        """The same as an exception."""
        kind = getattr(errors, self.type, None)
        if not (isinstance(kind, type) and issubclass(kind, DeltaMaintenanceError)):
            kind = DeltaMaintenanceError
        return kind(
            self.problem,
            table=self.table,
            version=self.version,
            file=self.file,
            remedy=self.remedy,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport(Record):
    """How a job ended."""

    status: Literal["done", "failed", "refused"]
    """`refused`: nothing was touched, and running again will not help."""
    result: dict[str, Any] | None = None
    """The operation's Result, where it is done."""
    error: JobError | None = None

    @property
    def exit_status(self) -> int:
        """The exit status of the job, the same as the command line's."""
        return 0 if self.error is None else self.error.exit_status

    @classmethod
    def of_error(cls, error: Exception) -> JobReport:
        """The report of a job that an error ended."""
        told = JobError.of(error)
        return cls(status="refused" if told.exit_status == 3 else "failed", error=told)

    def to_json(self) -> dict[str, Any]:
        """With `result` or with `error`, never with both."""
        value = super(JobReport, self).to_json()
        return {name: item for name, item in value.items() if item is not None}

    def result_or_raise(self) -> dict[str, Any]:
        """The operation's Result as JSON, or the job's error as an exception."""
        if self.error is not None:
            raise self.error.to_error()
        return self.result or {}


def submit_command(
    spec: str,
    report: str,
    *,
    spark_submit: str = "spark-submit",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    py_files: Sequence[str] = (),
    application: str | os.PathLike[str] = APPLICATION,
) -> list[str]:
    """The words of a command that submits a job.

    `spec` is what `JobSpec.write` returned, or its JSON where it holds no credentials. `report` is
    where the job answers: a path of the driver's machine, or an address in the table's store.
    """
    return [
        spark_submit,
        *(["--master", master] if master else []),
        *(word for name, value in (conf or {}).items() for word in ("--conf", f"{name}={value}")),
        *(["--py-files", ",".join(py_files)] if py_files else []),
        os.fspath(application),
        *("--spec", spec, "--report", report),
    ]


def read_report(path: str | os.PathLike[str]) -> JobReport:
    """The report in a file. `FileNotFoundError` where the job ended without one."""
    return JobReport.from_json(json.loads(Path(path).read_bytes()))


def _gist(error: Exception) -> str:
    """One line of an error; of one that a Python worker raised, what it raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for index, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            # Frames are pairs of lines that begin so; the first other line names the error.
            raised = [text for text in lines[index + 1 :] if _names_error(text)]
            if raised:
                return raised[0]
    return lines[0] if lines else "no message"


def _names_error(line: str) -> bool:
    name, colon, _ = line.partition(": ")
    return bool(colon) and name.rpartition(".")[2].endswith(("Error", "Exception"))
