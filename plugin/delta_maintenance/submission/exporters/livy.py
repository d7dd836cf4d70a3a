"""The body of `POST /batches` of Apache Livy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.specification import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class LivyBatch(Record):
    """A batch on a Livy server, which submits to YARN in cluster mode or to Kubernetes."""

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
            "file": submission.code.application,
            "args": list(submission.arguments),
            "pyFiles": list(code.py_files),
            "archives": list(code.archives),
            "conf": submission.properties(driver_environment="spark.yarn.appMasterEnv."),
            "name": self.name,
            "proxyUser": self.proxy_user,
            "queue": self.queue,
        }
        return {field: value for field, value in body.items() if value}
