"""Links of tasks."""

from __future__ import annotations

from typing import Any

import pytest

from delta_maintenance_airflow.links import HealthPageLink, ReportLink, SparkUILink
from delta_maintenance_airflow.operators import DeltaVacuumOperator
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize(
    ("table", "link"),
    [
        ({"name": "a&b=1 c", "uri": "/x"}, "/delta-maintenance/table?name=a%26b%3D1+c"),
        ({"uri": "s3://lake/t"}, "/delta-maintenance/table?name=s3%3A%2F%2Flake%2Ft"),
        ("{{ not rendered }}", ""),
        ({"name": 7}, ""),
    ],
)
def test_a_task_links_to_the_health_of_its_table(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch, table: Any, link: str
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")
    operator = DeltaPolicyRunOperator(task_id="run", table=table)
    (shown,) = operator.operator_extra_links
    assert isinstance(shown, HealthPageLink)
    expected = f"https://airflow.example{link}" if link else ""
    assert shown.get_link(operator, ti_key=None) == expected


def test_an_operator_with_an_address_links_to_the_list_of_tables_and_to_its_report(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")
    operator = DeltaVacuumOperator(task_id="vacuum", table_uri="s3://lake/t")
    health, report = operator.operator_extra_links[:2]
    assert isinstance(health, HealthPageLink) and isinstance(report, ReportLink)
    link = health.get_link(operator, ti_key=None)
    assert link == "https://airflow.example/delta-maintenance/?q=s3%3A%2F%2Flake%2Ft"


@pytest.mark.parametrize(
    ("told", "link"),
    [
        ({"report_uri": "s3://lake/reports/1.parquet"}, "s3://lake/reports/1.parquet"),
        ({"status": "done"}, ""),
        ({"report_uri": "javascript:alert(1)"}, ""),
        ({"report_uri": "javascript://%0aalert(1)"}, ""),
        ({"report_uri": "java\nscript:alert(1)"}, ""),
        ({"report_uri": "https://evil.example/report"}, ""),
        ({"report_uri": "//evil.example/report"}, ""),
        ({"report_uri": "/\t/evil.example/report"}, ""),
        ({"report_uri": "s3://key:secret@lake/report"}, ""),
        ({"report_uri": ["s3://lake/reports"]}, ""),
        (None, ""),
    ],
)
def test_a_report_is_linked_where_one_was_written(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch, told: Any, link: str
) -> None:
    monkeypatch.setattr("airflow.sdk.execution_time.xcom.XCom.get_value", lambda ti_key, key: told)
    assert ReportLink().get_link(None, ti_key=None) == link


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("http://driver.example:4040", True),
        ("https://proxy.example/application_1/", True),
        ("javascript:alert(1)", False),
        ("https:/\\evil.example", False),
        ("http://user:secret@driver.example:4040", False),
        ("http://driver.example\n.evil.example", False),
        ("data:text/html,x", False),
        ("//evil.example", False),
        ("http://[", False),
        (None, False),
    ],
)
def test_spark_is_linked_by_an_address_of_the_web_only(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch, told: Any, shown: bool
) -> None:
    monkeypatch.setattr("airflow.sdk.execution_time.xcom.XCom.get_value", lambda ti_key, key: told)
    assert SparkUILink().get_link(None, ti_key=None) == (told if shown else "")
