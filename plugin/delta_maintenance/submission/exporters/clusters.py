"""Requests of the platforms beside AWS: Livy with Azure Synapse and Microsoft Fabric, the Spark
operator on Kubernetes, Dataproc, and Databricks.

With Livy, a job is a batch, not a session: a session waits for statements and runs on until it is
deleted, whereas a batch runs one file with arguments, and ends with it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.specification import Count, Resources, Submission, with_value

_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""A DNS label, the form of names in Kubernetes."""
_Id = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]


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
        if submission.code.image is not None:
            raise InvalidRequestError(
                "Livy does not accept images", remedy="set the image where the server runs"
            )
        server_fields = {"name": self.name, "proxyUser": self.proxy_user, "queue": self.queue}
        return with_value({**_batch(submission), **server_fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class SynapseBatch(Record):
    """A batch of a Spark pool of Azure Synapse: the body of `POST
    /livyApi/versions/2019-11-01-preview/sparkPools/POOL/batches`.
    """

    name: str | None = None
    """By default, the name of the submission."""

    def document(self, submission: Submission) -> dict[str, Any]:
        """The body of the request."""
        if submission.code.image is not None:
            raise InvalidRequestError(
                "a Spark pool of Synapse does not accept images",
                remedy="give the packages to the pool, or give an archive",
            )
        return _sized_batch(submission, name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricBatch(Record):
    """A batch of a lakehouse of Microsoft Fabric: the body of `POST
    /v1/workspaces/ID/lakehouses/ID/livyapi/versions/2023-12-01/batches`.
    """

    name: str | None = None
    """By default, the name of the submission."""
    environment_id: _Id | None = None
    """The environment of the workspace that has the packages of the job. By default, the default
    environment.
    """

    def document(self, submission: Submission) -> dict[str, Any]:
        """The body of the request."""
        if submission.code.image is not None:
            raise InvalidRequestError(
                "Fabric does not accept images",
                remedy="give the packages to an environment, and give its environment_id",
            )
        body = _sized_batch(submission, name=self.name)
        if self.environment_id is not None:
            details = {"spark.fabric.environmentDetails": json.dumps({"id": self.environment_id})}
            body["conf"] = {**body.get("conf", {}), **details}
        return body


def _sized_batch(submission: Submission, *, name: str | None) -> dict[str, Any]:
    # These platforms choose machines by the fields, before Spark reads its properties.
    resources = submission.resources
    overhead = Resources(executor_memory_overhead=resources.executor_memory_overhead)
    return with_value(
        {
            "name": name or submission.name,
            **_batch(replace(submission, resources=overhead)),
            "driverCores": resources.driver_cores,
            "driverMemory": resources.driver_memory,
            "numExecutors": resources.executors,
            "executorCores": resources.executor_cores,
            "executorMemory": resources.executor_memory,
        }
    )


def _batch(submission: Submission) -> dict[str, Any]:
    return {
        "file": submission.code.application,
        "args": list(submission.arguments),
        "pyFiles": list(submission.code.py_files),
        "archives": list(submission.code.archives),
        "conf": submission.properties(driver_environment="spark.yarn.appMasterEnv."),
    }


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
            "deps": with_value({"pyFiles": list(code.py_files), "archives": list(code.archives)}),
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
            "spec": {
                **with_value(spec),
                "driver": with_value(driver),
                "executor": with_value(executor),
            },
        }


def _variables(submission: Submission) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in submission.environment.items()]


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
        execution = {"service_account": self.service_account, "subnetwork_uri": self.subnetwork_uri}
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
        unsupported_file = next(
            (address for address in code.py_files if not address.endswith(".whl")), None
        )
        if unsupported_file is not None:
            raise InvalidRequestError(
                f"Databricks does not install {unsupported_file}", remedy="give a wheel as py_files"
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
        new_cluster_settings = (self.spark_version, self.node_type_id, self.instance_profile_arn)
        properties = submission.properties()
        if self.existing_cluster_id is not None:
            if any(new_cluster_settings) or properties:
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
