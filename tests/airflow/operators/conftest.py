"""Spark jobs of operators, played in this process."""

from __future__ import annotations

from typing import Any

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.operations import add_constraint
from delta_maintenance.operations.core import RunContext
from delta_maintenance_airflow.spark.submission import SparkSubmission


@pytest.fixture
def spark_job(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The Spark job of a constraint, by an engine to which all rows are well; gives its options."""
    submitted: list[dict[str, Any]] = []

    def run(
        self: SparkSubmission, verb: str, table_uri: str, given: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
        assert verb == "add-constraint"
        submitted.append(given)
        options = add_constraint.AddConstraintOptions.from_json(given)
        table = open_table(table_uri)
        plan = add_constraint.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
        found = add_constraint.CheckedRows(files=13, rows=13)
        return add_constraint.apply(
            table, plan, context=RunContext(engine=lambda *_, **__: found)
        ).to_json()

    monkeypatch.setattr(SparkSubmission, "run", run)
    return submitted
