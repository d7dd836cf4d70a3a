"""The first line about a Spark job that ended without a report."""

from __future__ import annotations

import pytest

from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.spark.folder import without_report

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize(
    ("status", "first"),
    [
        (137, "killed (SIGKILL)"),
        (-9, "killed (SIGKILL)"),
        (143, "terminated (SIGTERM)"),
        (1, "exit status 1 and without a report"),
    ],
)
def test_the_first_line_reports_how_the_driver_ended(status: int, first: str) -> None:
    told = f"Cannot execute: spark-submit job.py. Error code is: {status}.\nlast lines"
    lines = without_report(AirflowException(told)).splitlines()
    assert first in lines[0]
    assert lines[1:] == told.splitlines()


def test_another_failure_is_passed_on() -> None:
    assert without_report(AirflowException("no YARN")) == "no YARN"
    assert "without a report" in without_report(None)
