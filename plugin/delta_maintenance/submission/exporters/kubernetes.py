"""Custom resources of the Spark operator on Kubernetes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.specification import Count, Submission, with_value

_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""A DNS label, the form of names in Kubernetes."""


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
