"""Links from tasks to the Spark applications that they started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

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
        # Called in the worker when the task ends and its table is known.
        table = getattr(operator, "table", None)
        if not isinstance(table, Mapping):
            return ""
        name = table.get("name") or table.get("uri")
        if not isinstance(name, str):
            return ""
        from airflow.configuration import conf

        base = str(conf.get("api", "base_url", fallback="")).rstrip("/")
        return f"{base}{URL_PREFIX}/table?{urlencode({'name': name})}"


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
