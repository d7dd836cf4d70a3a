"""The parameters of `StartJobRun` of Amazon EMR Serverless."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.specification import Count, Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class EmrServerlessJobRun(Record):
    """A job run of an EMR Serverless application."""

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
