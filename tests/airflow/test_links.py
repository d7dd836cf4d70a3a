"""Links of tasks."""

from __future__ import annotations

from typing import Any

import pytest

from delta_maintenance_airflow.links import HealthPageLink
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
