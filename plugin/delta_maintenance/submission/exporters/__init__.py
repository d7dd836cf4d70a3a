"""Submissions as request documents. Nothing is sent.

Each class contains the settings of its platform. `document` is pure: the same submission results in
the same document. Users can keep their client or operator for the platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from delta_maintenance.submission.exporters.aws import EmrServerlessJobRun, GlueJob, GlueJobRun
from delta_maintenance.submission.exporters.clusters import (
    DatabricksRun,
    DataprocBatch,
    DataprocJob,
    FabricBatch,
    LivyBatch,
    SparkApplication,
    SynapseBatch,
)
from delta_maintenance.submission.specification import Submission

__all__ = [
    "EXPORTERS",
    "DatabricksRun",
    "DataprocBatch",
    "DataprocJob",
    "EmrServerlessJobRun",
    "Exporter",
    "FabricBatch",
    "GlueJob",
    "GlueJobRun",
    "LivyBatch",
    "SparkApplication",
    "SynapseBatch",
]


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
    "synapse": SynapseBatch,
    "fabric": FabricBatch,
    "emr-serverless": EmrServerlessJobRun,
    "glue": GlueJobRun,
    "glue-job": GlueJob,
    "databricks": DatabricksRun,
    "dataproc": DataprocBatch,
    "dataproc-cluster": DataprocJob,
    "kubernetes": SparkApplication,
}
"""The exporters by the platform's name on the command line."""
