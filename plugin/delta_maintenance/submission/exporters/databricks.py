"""Requests of Databricks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.specification import Count, Resources, Submission


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
