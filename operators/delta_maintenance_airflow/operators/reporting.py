"""Operators that write long lists of files to a report, because XCom and logs are too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delta_maintenance import clock
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator


class DeltaReportingOperator(DeltaMaintenanceOperator):
    """Writes all files or findings to a report, before anything is changed.

    Takes the parameters of `DeltaMaintenanceOperator`, and:

    :param report_uri: the address of a new Parquet file outside the table. An address that ends in
        `/` is a folder, in which every try writes a file of its own. XCom has the address of that
        file as `report_uri`. (templated)
    """

    template_fields: Sequence[str] = (*DeltaMaintenanceOperator.template_fields, "report_uri")

    def __init__(self, *, report_uri: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.report_uri = report_uri
        self._report: str | None = None

    def new_report(self) -> str | None:
        if not self.report_uri:
            return None
        name = f"{clock.new_id()}.parquet" if self.report_uri.endswith("/") else ""
        self._report = self.report_uri + name
        return self._report

    def reported_at(self, address: str) -> None:
        """Stores the address of the report of a Spark job, which an earlier try may have written
        elsewhere.
        """
        self._report = address

    def reported(self, document: Any) -> str | None:
        # Some documents contain the address of the report, or None.
        report: str | None = getattr(document, "report", self._report)
        return report
