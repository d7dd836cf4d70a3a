"""Links from tasks to the health page, to reports, and to Spark applications."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.redaction import holds_credentials
from delta_maintenance_airflow import URL_PREFIX

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


# Without blanks, control characters and backslashes, which browsers remove or replace.
_PRINTABLE = re.compile(r"[^\s\x00-\x20\x7f\\]+")


class HealthPageLink(BaseOperatorLink):
    """Links to the health page of the table of a task."""

    name = "Table health"

    @property
    def xcom_key(self) -> str:
        return "delta_table_health"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        # Called in the worker at the end of the task, when its table is known.
        table, uri = getattr(operator, "table", None), getattr(operator, "table_uri", None)
        name = (table.get("name") or table.get("uri")) if isinstance(table, Mapping) else None
        if any(isinstance(text, str) and holds_credentials(text) for text in (name, uri)):
            # The address was refused, and the link is stored.
            return ""
        if isinstance(name, str):
            return _page(f"/table?{urlencode({'name': name})}")
        # The policy may use another name for the table, so the list is searched by address.
        return _page(f"/?{urlencode({'q': uri})}") if isinstance(uri, str) else ""


class ReportLink(BaseOperatorLink):
    """Links to the list that an operation has written, such as the files that a vacuum deleted."""

    name = "Report"

    @property
    def xcom_key(self) -> str:
        return "delta_report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        from airflow.sdk.execution_time.xcom import XCom

        value = XCom.get_value(ti_key=ti_key, key=BaseXCom.XCOM_RETURN_KEY)
        return _in_store(value.get("report_uri") if isinstance(value, Mapping) else None)


class SparkUILink(BaseOperatorLink):
    """Links to the user interface of the Spark application, once the driver has reported it."""

    name = "Spark UI"

    @property
    def xcom_key(self) -> str:
        return "delta_spark_ui"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        # Called again at the end of the task, and replaces the value that was pushed while it ran.
        from airflow.sdk.execution_time.xcom import XCom

        return _on_web(XCom.get_value(ti_key=ti_key, key=self.xcom_key))


def _in_store(address: object) -> str:
    """Returns the address of a file in an object store or on HDFS; an empty text for any other.

    A browser could run other addresses as a script, or take a local path for a page of a host.
    """
    if not isinstance(address, str) or not _PRINTABLE.fullmatch(address):
        return ""
    try:
        kind = Address.parse(address).kind
    except InvalidRequestError:
        return ""
    return address if kind not in (StoreKind.OTHER, StoreKind.LOCAL, StoreKind.MEMORY) else ""


def _on_web(address: object) -> str:
    """Returns the address of a web page without credentials; an empty text for any other.

    The address comes from the output of the driver.
    """
    if not isinstance(address, str) or not _PRINTABLE.fullmatch(address):
        return ""
    try:
        split_address = urlsplit(address)
        plain = (
            split_address.scheme in ("http", "https")
            and split_address.hostname
            and "@" not in split_address.netloc
        )
    except ValueError:
        return ""
    return address if plain else ""


def _page(path: str) -> str:
    """Returns the address of a page below the health page."""
    from airflow.configuration import conf

    base = str(conf.get("api", "base_url", fallback="")).rstrip("/")
    return f"{base}{URL_PREFIX}{path}"
