"""Submissions as request documents: one module per platform. Nothing is sent.

Each class contains the settings of its platform. `document` is pure: the same submission results in
the same document. Users can keep their client or operator for the platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from delta_maintenance.submission.exporters.databricks import DatabricksRun
from delta_maintenance.submission.exporters.dataproc import DataprocBatch, DataprocJob
from delta_maintenance.submission.exporters.emr_serverless import EmrServerlessJobRun
from delta_maintenance.submission.exporters.kubernetes import SparkApplication
from delta_maintenance.submission.exporters.livy import LivyBatch
from delta_maintenance.submission.specification import Submission

__all__ = [
    "EXPORTERS",
    "DatabricksRun",
    "DataprocBatch",
    "DataprocJob",
    "EmrServerlessJobRun",
    "Exporter",
    "LivyBatch",
    "SparkApplication",
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
    "emr-serverless": EmrServerlessJobRun,
    "databricks": DatabricksRun,
    "dataproc": DataprocBatch,
    "dataproc-cluster": DataprocJob,
    "kubernetes": SparkApplication,
}
"""The exporters by the platform's name on the command line."""
