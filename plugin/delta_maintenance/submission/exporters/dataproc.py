"""Requests of Dataproc."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.specification import Submission, with_value


@dataclass(frozen=True, slots=True, kw_only=True)
class DataprocBatch(Record):
    """A serverless batch.

    The fields have the names of the protocol buffers, which the client libraries, the operators of
    Airflow and the REST API all accept.
    """

    runtime_version: str | None = None
    """The version of the runtime, such as `2.3`."""
    service_account: str | None = None
    """The identity with which the job reaches the table."""
    subnetwork_uri: str | None = None

    def document(self, submission: Submission) -> dict[str, Any]:
        """The `Batch`."""
        runtime = {
            "version": self.runtime_version,
            "container_image": submission.code.image,
            "properties": submission.properties(driver_environment="spark.dataproc.driverEnv."),
        }
        execution = {
            "service_account": self.service_account,
            "subnetwork_uri": self.subnetwork_uri,
        }
        batch = {
            "pyspark_batch": _pyspark(submission),
            "runtime_config": with_value(runtime),
            "environment_config": with_value({"execution_config": with_value(execution)}),
        }
        return with_value(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataprocJob(Record):
    """A job on an existing cluster, which also runs the driver."""

    project_id: str
    cluster_name: str

    def document(self, submission: Submission) -> dict[str, Any]:
        """The `Job`."""
        if submission.code.image is not None:
            raise InvalidRequestError(
                "a job on a cluster of Dataproc cannot have an image",
                remedy="omit the image, or request a serverless batch",
            )
        properties = {
            # In client mode the driver has the environment of Dataproc's agent.
            "spark.submit.deployMode": "cluster",
            **submission.properties(driver_environment="spark.yarn.appMasterEnv."),
        }
        return {
            "reference": {"project_id": self.project_id},
            "placement": {"cluster_name": self.cluster_name},
            "pyspark_job": {**_pyspark(submission), "properties": properties},
        }


def _pyspark(submission: Submission) -> dict[str, Any]:
    return with_value(
        {
            "main_python_file_uri": submission.code.application,
            "args": list(submission.arguments),
            "python_file_uris": list(submission.code.py_files),
            "archive_uris": list(submission.code.archives),
        }
    )
