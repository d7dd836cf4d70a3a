"""Requests of EMR Serverless and Glue: parameters of the AWS SDKs and of `--cli-input-json`."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.specification import Count, Resources, Submission, with_value


@dataclass(frozen=True, slots=True, kw_only=True)
class EmrServerlessJobRun(Record):
    """A job run of an EMR Serverless application: the parameters of `StartJobRun`."""

    application_id: str
    execution_role_arn: str
    """The role with which the job reaches the table."""
    client_token: str
    """The same for each attempt of a request: a second request with the same token starts
    nothing.
    """
    execution_timeout_minutes: Count | None = None
    log_uri: str | None = None
    """An address on S3 for the logs of driver and executors."""

    def document(self, submission: Submission) -> dict[str, Any]:
        """The parameters, as the AWS SDKs take them."""
        code = submission.code
        if code.image is not None:
            raise InvalidRequestError(
                "a job run of EMR Serverless does not accept an image",
                remedy="set the image of the application",
            )
        properties = submission.properties(driver_environment="spark.emr-serverless.driverEnv.")
        if properties.pop("spark.pyspark.python", None):
            # This platform reads the interpreter only from the environment.
            for where in ("spark.emr-serverless.driverEnv.", "spark.executorEnv."):
                properties[f"{where}PYSPARK_PYTHON"] = str(code.python)
            properties["spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON"] = str(code.python)
        words = [word for item in properties.items() for word in ("--conf", "=".join(item))]
        for flag, addresses in (("--py-files", code.py_files), ("--archives", code.archives)):
            if addresses:
                words += [flag, ",".join(addresses)]
        driver: dict[str, Any] = {
            "entryPoint": submission.code.application,
            "entryPointArguments": list(submission.arguments),
        }
        if words:
            driver["sparkSubmitParameters"] = " ".join(_word(word) for word in words)
        request: dict[str, Any] = {
            "applicationId": self.application_id,
            "executionRoleArn": self.execution_role_arn,
            "clientToken": self.client_token,
            "name": submission.name,
            "jobDriver": {"sparkSubmit": driver},
        }
        if self.execution_timeout_minutes is not None:
            request["executionTimeoutMinutes"] = self.execution_timeout_minutes
        if self.log_uri is not None:
            request["configurationOverrides"] = {
                "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": self.log_uri}}
            }
        return request


def _word(text: str) -> str:
    # Quoted only where necessary: the `#` before the folder of an archive is not quoted.
    return shlex.quote(text) if set(text) & set(" \t\n'\"\\") else text


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueJobRun(Record):
    """A run of an existing job of Glue: the parameters of `StartJobRun`.

    The run brings its own script and arguments, so one job serves all operations and tables. It
    keeps the other arguments of the job.
    """

    job_name: str
    worker_type: str | None = None
    """The size of a worker, such as `G.1X`, if it is not that of the job."""
    timeout_minutes: Count | None = None
    execution_class: Literal["STANDARD", "FLEX"] | None = None
    additional_python_modules: str | None = None
    """Packages that pip installs before the run, separated by commas."""

    def document(self, submission: Submission) -> dict[str, Any]:
        """The parameters."""
        script = {"--scriptLocation": submission.code.application}
        return with_value(
            {
                "JobName": self.job_name,
                "Arguments": {**script, **_arguments(submission, self.additional_python_modules)},
                "WorkerType": self.worker_type,
                "NumberOfWorkers": _workers(submission),
                "Timeout": self.timeout_minutes,
                "ExecutionClass": self.execution_class,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueJob(Record):
    """A new job of Glue, which does the work of the submission unless a run says otherwise: the
    parameters of `CreateJob`.
    """

    name: str
    role: str
    """The role with which the job reaches the table: its name, or its ARN."""
    glue_version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]
    """The version of Glue, 5.0 or newer."""
    worker_type: str
    """The size of a worker, such as `G.1X`."""
    timeout_minutes: Count | None = None
    execution_class: Literal["STANDARD", "FLEX"] | None = None
    max_concurrent_runs: Count | None = None
    """How many runs of the job may take place at the same time; by default one."""
    additional_python_modules: str | None = None
    """Packages that pip installs before a run, separated by commas."""

    def document(self, submission: Submission) -> dict[str, Any]:
        """The parameters."""
        if int(self.glue_version.partition(".")[0]) < 5:
            raise InvalidRequestError(
                f"the Python of Glue {self.glue_version} is too old",
                remedy="give 5.0 or newer as glue_version",
            )
        workers = _workers(submission)
        if workers is None:
            raise InvalidRequestError(
                "a job of Glue needs a number of workers", remedy="give the number of executors"
            )
        return with_value(
            {
                "Name": self.name,
                "Role": self.role,
                "Command": {
                    "Name": "glueetl",
                    "ScriptLocation": submission.code.application,
                    "PythonVersion": "3",
                },
                "GlueVersion": self.glue_version,
                "DefaultArguments": _arguments(submission, self.additional_python_modules),
                "WorkerType": self.worker_type,
                "NumberOfWorkers": workers,
                "Timeout": self.timeout_minutes,
                "ExecutionClass": self.execution_class,
                "ExecutionProperty": with_value({"MaxConcurrentRuns": self.max_concurrent_runs}),
            }
        )


def _workers(submission: Submission) -> int | None:
    if replace(submission.resources, executors=None) != Resources():
        raise InvalidRequestError(
            "on Glue the worker type determines the cores and memory of an executor",
            remedy="choose worker_type, and the number of executors",
        )
    executors = submission.resources.executors
    # One more worker runs the driver.
    return None if executors is None else executors + 1


def _arguments(submission: Submission, modules: str | None) -> dict[str, str]:
    code = submission.code
    if code.image is not None or code.python is not None:
        raise InvalidRequestError(
            "Glue accepts neither an image nor the path of a Python",
            remedy="omit them; an archive replaces the Python of Glue",
        )
    if submission.environment:
        raise InvalidRequestError(
            f"Glue does not accept the environment variable {next(iter(submission.environment))}",
            remedy="omit it",
        )
    wheels = [address for address in code.py_files if address.endswith(".whl")]
    installed = [*wheels, *(modules.split(",") if modules else ())]
    if len(code.archives) > 1 or (code.archives and installed):
        raise InvalidRequestError(
            "Glue accepts one environment: an archive, or packages to install",
            remedy="give one archive, or else wheels and additional_python_modules",
        )
    for address in (code.application, *code.py_files, *code.archives):
        if not address.startswith("s3://"):
            raise InvalidRequestError(
                f"Glue does not read {address}", remedy="give an address that begins with s3://"
            )
    spaced = next(
        (name for name, value in submission.conf.items() if re.search(r"\s", value)), None
    )
    if spaced is not None:
        raise InvalidRequestError(
            f"Glue does not accept spaces in the value of the Spark property {spaced}",
            remedy="omit the property",
        )
    words = submission.arguments
    settings = {
        "--extra-py-files": ",".join(each for each in code.py_files if each not in wheels),
        "--additional-python-modules": ",".join(installed),
        # Glue unpacks it itself, without a folder that has a name.
        "--python-virtual-env": "".join(each.partition("#")[0] for each in code.archives),
        # Glue puts the value behind one `--conf`.
        "--conf": " --conf ".join("=".join(item) for item in submission.conf.items()),
    }
    return {**with_value(settings), **dict(zip(words[0::2], words[1::2], strict=True))}
