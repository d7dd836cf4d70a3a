"""Batches of Livy, and of the two platforms with an interface like Livy's.

A job is a batch everywhere, not a session: a session waits for statements and runs on until it is
deleted, whereas a batch runs one file with arguments, and ends with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.specification import Resources, Submission, with_value

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
        more = {"name": self.name, "proxyUser": self.proxy_user, "queue": self.queue}
        return with_value({**_batch(submission), **more})


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
    rest = Resources(executor_memory_overhead=resources.executor_memory_overhead)
    return with_value(
        {
            "name": name or submission.name,
            **_batch(replace(submission, resources=rest)),
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
