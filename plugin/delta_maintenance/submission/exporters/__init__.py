"""Submissions as request documents. Nothing is sent.

Each class contains the settings of its platform. `document` is pure: the same submission results in
the same document. Users can keep their client or operator for the platform.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, Self

from pydantic import Field

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.specification import Count, Resources, Submission

_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""A DNS label, the form of names in Kubernetes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivyBatch(Record):
    """A batch on a Livy server, which submits to YARN in cluster mode or to Kubernetes: the body of
    `POST /batches`.
    """

    name: str | None = None
    """The name of the batch. A server accepts a name only once at a time."""
    proxy_user: str | None = None
    queue: str | None = None

    def document(self, submission: Submission) -> dict[str, Any]:
        """The body of the request."""
        code = submission.code
        if code.image is not None:
            raise InvalidRequestError(
                "Livy does not accept images", remedy="set the image where the server runs"
            )
        body = {
            "file": code.application,
            "args": list(submission.arguments),
            "pyFiles": list(code.py_files),
            "archives": list(code.archives),
            "conf": submission.properties(driver_environment="spark.yarn.appMasterEnv."),
            "name": self.name,
            "proxyUser": self.proxy_user,
            "queue": self.queue,
        }
        return {field: value for field, value in body.items() if value}


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
class DatabricksRun(Record):
    """A one-time run of a `spark_python_task`, on an existing cluster or on a new one.

    Databricks installs the wheels among `py_files`, including their dependencies.
    """

    existing_cluster_id: str | None = None
    spark_version: str | None = None
    """The runtime of a new cluster, such as `17.3.x-scala2.13`."""
    node_type_id: str | None = None
    instance_profile_arn: str | None = None
    """The identity of a new cluster on AWS."""
    idempotency_token: str | None = None
    """The same for each attempt of a request: a second request with the same token starts
    nothing.
    """
    timeout_seconds: Count | None = None

    def document(self, submission: Submission) -> dict[str, Any]:
        """The body of the request."""
        code = submission.code
        if code.archives or code.python is not None or code.image is not None:
            raise InvalidRequestError(
                "a run on Databricks cannot have an environment of its own",
                remedy="give a wheel as py_files, which the cluster installs",
            )
        other = next((address for address in code.py_files if not address.endswith(".whl")), None)
        if other is not None:
            raise InvalidRequestError(
                f"Databricks does not install {other}", remedy="give a wheel as py_files"
            )
        task = {
            "task_key": submission.name.replace(" ", "-"),
            "spark_python_task": {
                "python_file": submission.code.application,
                "parameters": list(submission.arguments),
            },
            **self._cluster(submission),
        }
        if code.py_files:
            task["libraries"] = [{"whl": address} for address in code.py_files]
        body = {
            "run_name": submission.name,
            "tasks": [task],
            "idempotency_token": self.idempotency_token,
            "timeout_seconds": self.timeout_seconds,
        }
        return {field: value for field, value in body.items() if value is not None}

    def _cluster(self, submission: Submission) -> dict[str, Any]:
        own = (self.spark_version, self.node_type_id, self.instance_profile_arn)
        properties = submission.properties()
        if self.existing_cluster_id is not None:
            if any(own) or properties:
                raise InvalidRequestError(
                    "an existing cluster has its own version, nodes, properties and environment",
                    remedy="omit them, or omit existing_cluster_id",
                )
            return {"existing_cluster_id": self.existing_cluster_id}
        if self.spark_version is None or self.node_type_id is None:
            raise InvalidRequestError(
                "a run on Databricks needs a cluster",
                remedy="give existing_cluster_id, or spark_version and node_type_id",
            )
        workers = submission.resources.executors or 1
        if replace(submission.resources, executors=None) != Resources():
            raise InvalidRequestError(
                "on Databricks the node type determines the cores and memory of an executor",
                remedy="choose node_type_id, and the number of executors",
            )
        cluster: dict[str, Any] = {
            "spark_version": self.spark_version,
            "node_type_id": self.node_type_id,
            "num_workers": workers,
        }
        if submission.conf:
            cluster["spark_conf"] = dict(submission.conf)
        if submission.environment:
            cluster["spark_env_vars"] = dict(submission.environment)
        if self.instance_profile_arn is not None:
            cluster["aws_attributes"] = {"instance_profile_arn": self.instance_profile_arn}
        return {"new_cluster": cluster}


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
            "runtime_config": _given(runtime),
            "environment_config": _given({"execution_config": _given(execution)}),
        }
        return _given(batch)


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
    return _given(
        {
            "main_python_file_uri": submission.code.application,
            "args": list(submission.arguments),
            "python_file_uris": list(submission.code.py_files),
            "archive_uris": list(submission.code.archives),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkApplication(Record):
    """A custom resource for `kubectl create -f` or for an operator of Airflow."""

    namespace: _Name
    spark_version: str
    """The version of Spark in the image."""
    service_account: _Name
    """The service account with which the driver starts its executors."""
    name: _Name | None = None
    """If None, Kubernetes generates a name."""
    time_to_live_seconds: Count | None = None
    """The seconds for which the resource is kept after the end."""

    def document(self, submission: Submission) -> dict[str, Any]:
        """The resource."""
        code, resources = submission.code, submission.resources
        if code.image is None:
            raise InvalidRequestError("the submission has no image", remedy="give an image")
        prefix = re.sub("[^a-z0-9]+", "-", submission.name.lower())
        spec = {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": self.spark_version,
            "image": code.image,
            "mainApplicationFile": submission.code.application,
            "arguments": list(submission.arguments),
            "deps": _given({"pyFiles": list(code.py_files), "archives": list(code.archives)}),
            "sparkConf": submission.conf | code.conf(),
            # The submitter of the job decides about retries.
            "restartPolicy": {"type": "Never"},
            "timeToLiveSeconds": self.time_to_live_seconds,
        }
        driver = {
            "cores": resources.driver_cores,
            "memory": resources.driver_memory,
            "serviceAccount": self.service_account,
            "env": _variables(submission),
        }
        executor = {
            "instances": resources.executors,
            "cores": resources.executor_cores,
            "memory": resources.executor_memory,
            "memoryOverhead": resources.executor_memory_overhead,
            "env": _variables(submission),
        }
        return {
            "apiVersion": "sparkoperator.k8s.io/v1beta2",
            "kind": "SparkApplication",
            "metadata": {
                "namespace": self.namespace,
                **({"name": self.name} if self.name else {"generateName": f"{prefix}-"}),
            },
            # The operator requires both sizes even if none is given for executors.
            "spec": {**_given(spec), "driver": _given(driver), "executor": _given(executor)},
        }


def _variables(submission: Submission) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in submission.environment.items()]


class Exporter(Protocol):
    """Converts submissions to documents."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The settings that only the platform has. Raises `InvalidRequestError`, which names the
        invalid field.
        """

    def document(self, submission: Submission) -> dict[str, Any]:
        """The request. Raises `InvalidRequestError` for settings that the platform does not
        support.
        """


EXPORTERS: Mapping[str, type[Exporter]] = {
    "livy": LivyBatch,
    "emr-serverless": EmrServerlessJobRun,
    "databricks": DatabricksRun,
    "dataproc": DataprocBatch,
    "dataproc-cluster": DataprocJob,
    "kubernetes": SparkApplication,
}
"""The exporters by the platform's name on the command line."""


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
