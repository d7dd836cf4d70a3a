"""Operators that write long lists of files to a report, because XCom and logs are too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delta_maintenance import clock
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator


class DeltaReportingOperator(DeltaMaintenanceOperator):
    """Writes every single file or finding to a report, before anything is changed.

    Takes the parameters of `DeltaMaintenanceOperator`, and:

    :param report_uri: the address of a new Parquet file outside the table. One that ends in `/` is
        a folder, in which every try leaves a file of its own. XCom says which as `report_uri`.
        (templated)
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
        """Takes note of where a Spark job has reported; that of an earlier try, elsewhere."""
        self._report = address

    def reported(self, document: Any) -> str | None:
        # Some documents say themselves whether there is a report.
        told: str | None = getattr(document, "report", self._report)
        return told
