"""Links from tasks to the health page, to reports, and to Spark applications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow import URL_PREFIX

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class HealthPageLink(BaseOperatorLink):
    """Links to the health page of the table of a task."""

    name = "Table health"

    @property
    def xcom_key(self) -> str:
        return "delta_table_health"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        # Asked for in the worker, when the task ends and its table is known.
        table, uri = getattr(operator, "table", None), getattr(operator, "table_uri", None)
        name = (table.get("name") or table.get("uri")) if isinstance(table, Mapping) else None
        if isinstance(name, str):
            return _page(f"/table?{urlencode({'name': name})}")
        # The policy may know the table by another name, so the list is searched by its address.
        return _page(f"/?{urlencode({'q': uri})}") if isinstance(uri, str) else ""


class ReportLink(BaseOperatorLink):
    """To the list that an operation has written, such as the files that a vacuum deleted."""

    name = "Report"

    @property
    def xcom_key(self) -> str:
        return "delta_report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        from airflow.sdk.execution_time.xcom import XCom

        told = XCom.get_value(ti_key=ti_key, key=BaseXCom.XCOM_RETURN_KEY)
        address = told.get("report_uri") if isinstance(told, Mapping) else None
        return address if isinstance(address, str) else ""


class SparkUILink(BaseOperatorLink):
    """Links to the user interface of the Spark application, once the driver has reported it."""

    name = "Spark UI"

    @property
    def xcom_key(self) -> str:
        return "delta_spark_ui"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        # Called again when the task ends, instead of the value that was pushed while it ran.
        from airflow.sdk.execution_time.xcom import XCom

        address = XCom.get_value(ti_key=ti_key, key=self.xcom_key)
        return address if isinstance(address, str) else ""


def _page(path: str) -> str:
    """The address of a page below the health page."""
    from airflow.configuration import conf

    base = str(conf.get("api", "base_url", fallback="")).rstrip("/")
    return f"{base}{URL_PREFIX}{path}"
