"""The report of a Spark job, and its lines among those of Spark."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from delta_maintenance import errors
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.redaction import redact

OWN_LINE = "delta-maintenance: "
"""The prefix of lines of the job that are meant for people."""
APPLICATION_LINE = "DELTA_MAINTENANCE_APPLICATION "
"""The prefix of a JSON object with the `id` of the application, and the `url` of its user interface
or null. Printed when the session exists."""
REPORT_LINE = "DELTA_MAINTENANCE_REPORT "
"""The prefix of the report as JSON, which is the last line."""

_TASK_SECONDS = "spark_task_seconds"
_NO_PANDAS = re.compile("pandas >= [0-9.]+ must be installed", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DriverLine:
    """One line that a driver or `spark-submit` has printed."""

    text: str
    """The line without credentials, because Spark quotes addresses of its configuration and of the
    user's.
    """

    @classmethod
    def read(cls, line: str) -> Self:
        """Redacts a line of the output."""
        return cls(redact(line.rstrip()))

    @property
    def message(self) -> str | None:
        """What the job says to people; None for other lines."""
        return self._after(OWN_LINE)

    @property
    def is_report(self) -> bool:
        """Whether the line has the report, which is read from its file."""
        return self.text.startswith(REPORT_LINE)

    @property
    def is_application(self) -> bool:
        """Whether the line describes the application."""
        return self.text.startswith(APPLICATION_LINE)

    @property
    def application(self) -> str | None:
        """The ID of the application, if the line has it."""
        return self._property_of_application("id")

    @property
    def interface(self) -> str | None:
        """The address of the application's user interface, if the line has it."""
        return self._property_of_application("url")

    def _property_of_application(self, name: str) -> str | None:
        try:
            value = json.loads(self._after(APPLICATION_LINE) or "")[name]
        except (ValueError, LookupError, TypeError):
            return None
        return value if isinstance(value, str) else None

    def _after(self, prefix: str) -> str | None:
        return self.text.removeprefix(prefix) if self.text.startswith(prefix) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError(Record):
    """The error that ended a job."""

    type: str
    """The name of its class."""
    message: str
    """One complete line."""
    exit_status: int
    retryable: bool
    problem: str
    table: str | None = None
    catalog_name: str | None = None
    version: int | None = None
    file: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, error: Exception) -> JobError:
        """Converts any error; errors of other libraries keep their name and their text."""
        if not isinstance(error, DeltaMaintenanceError):
            name = type(error).__name__
            error = DeltaMaintenanceError(
                f"{name}: {_gist(error)}",
                remedy=remedy_without_pandas(str(error))
                or "check the job's log; it is safe to run again",
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
            catalog_name=error.catalog_name,
            version=error.version,
            file=error.file,
            remedy=error.remedy,
        )

    def to_error(self) -> DeltaMaintenanceError:
        """Returns the error as an exception."""
        kind = getattr(errors, self.type, None)
        if not (isinstance(kind, type) and issubclass(kind, DeltaMaintenanceError)):
            kind = DeltaMaintenanceError
        error = kind(
            self.problem, table=self.table, version=self.version, file=self.file, remedy=self.remedy
        )
        error.catalog_name = error.catalog_name or self.catalog_name
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport(Record):
    """The end of a job."""

    status: Literal["done", "failed", "refused"]
    """`refused`: nothing was changed, and running again does not help."""
    result: dict[str, Any] | None = None
    """The operation's Result, if it is done."""
    error: JobError | None = None
    report_uri: str | None = None
    """The address of the report with the complete list, if one was requested."""
    task_seconds: float | None = None
    """The time of all tasks of the job, if Spark tells it."""

    @property
    def exit_status(self) -> int:
        """The exit status of the job, the same as the command line's."""
        return 0 if self.error is None else self.error.exit_status

    @classmethod
    def of_error(cls, error: Exception) -> JobReport:
        """Builds the report of a job that ended with an error."""
        job_error = JobError.of(error)
        return cls(status="refused" if job_error.exit_status == 3 else "failed", error=job_error)

    def to_json(self) -> dict[str, Any]:
        """Contains either `result` or `error`."""
        value = super(JobReport, self).to_json()
        return {name: item for name, item in value.items() if item is not None}

    def result_or_raise(self) -> dict[str, Any]:
        """Returns the operation's Result as JSON, or raises the job's error."""
        if self.error is not None:
            raise self.error.to_error()
        return self.result or {}

    def timed_result_or_raise(self) -> dict[str, Any]:
        """Like `result_or_raise`, with the time of the tasks for `split_task_seconds`."""
        result, seconds = self.result_or_raise(), self.task_seconds
        return result if seconds is None else {**result, _TASK_SECONDS: seconds}


def split_task_seconds(document: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
    """Separates the Result or the Plan of a job from the time of its tasks."""
    result = dict(document)
    return result, result.pop(_TASK_SECONDS, None)


def read_report(path: str | os.PathLike[str]) -> JobReport:
    """Reads the report in a file. Raises `FileNotFoundError` if the job ended without one."""
    return JobReport.from_json(json.loads(Path(path).read_bytes()))


def remedy_without_pandas(problem: str) -> str | None:
    """Returns what to do about an error of PySpark that needs pandas; None for other errors."""
    if _NO_PANDAS.search(problem) is None:
        return None
    return "install it on the driver and the executors: pip install 'delta-maintenance[spark]'"


def _gist(error: Exception) -> str:
    """Returns one line of an error; for an error in a task, the original error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for index, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            # Frames are pairs of lines with this indentation; the next other line names the error.
            raised = [text for text in lines[index + 1 :] if _names_error(text)]
            if raised:
                return raised[0]
        # The sessions of Spark 3.5 quote the error of the JVM.
        if failure := _FAILURE.search(line):
            return failure[1]
    return lines[0] if lines else "no message"


_FAILURE = re.compile(r"most recent failure: Lost task .*?\): (.+)")


def _names_error(line: str) -> bool:
    name, colon, _ = line.partition(": ")
    return bool(colon) and name.rpartition(".")[2].endswith(("Error", "Exception"))
