"""Operators of single operations record their work in a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.ledger import LedgerTable
from delta_maintenance.storage import open_store
from delta_maintenance_airflow.operators import DeltaCheckpointOperator, DeltaVacuumOperator
from tests.support.orchestrators.airflow_versions import AirflowFailException
from tests.support.tables.overdue_tables import overdue_table

pytestmark = pytest.mark.airflow


def recorded(tmp_path: Path, *columns: str) -> list[dict[str, Any]]:
    found = LedgerTable(open_store(str(tmp_path / "ledger"))).read(("started_at", *columns))
    rows = found.sort_by("started_at").drop_columns("started_at").to_pylist()
    return [dict(row) for row in rows]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overdue_table(tmp_path / "t")
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))


def test_results_plans_and_failures_have_rows(tmp_path: Path, task_context: dict[str, Any]) -> None:
    asked = {"table_uri": str(tmp_path / "t"), "ledger": str(tmp_path / "ledger")}
    DeltaVacuumOperator(task_id="v", plan_only=True, **asked).execute(task_context)
    DeltaVacuumOperator(task_id="v", **asked).execute(task_context)
    (tmp_path / "t/_delta_log/00000000000000000016.json").unlink()
    with pytest.raises(AirflowFailException, match="commit 16 is missing"):
        DeltaCheckpointOperator(task_id="c", **asked).execute(task_context)
    columns = ("operation", "outcome", "done_by", "link", "freed", "table_name")
    rows = recorded(tmp_path, *columns, "error")
    assert "commit 16 is missing" in rows[2].pop("error")
    common = {"done_by": "airflow", "link": "/dags/d/runs/r/tasks/t", "table_name": f"{tmp_path}/t"}
    assert rows == [
        {"operation": "vacuum", "outcome": "planned", "freed": None, "error": None, **common},
        {"operation": "vacuum", "outcome": "done", "freed": "freed", "error": None, **common},
        {"operation": "checkpoint", "outcome": "failed", "freed": None, **common},
    ]


def test_the_ledger_of_the_policy_is_the_default(
    tmp_path: Path,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = tmp_path / "policy.yaml"
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__POLICY", str(policy))
    make = DeltaCheckpointOperator(task_id="c", table_uri=str(tmp_path / "t"))
    policy.write_text("version: 2\n")
    make.execute(task_context)
    assert "the ledger of the policy is unknown" in caplog.text
    policy.write_text(yaml.safe_dump({"version": 1, "ledger": str(tmp_path / "ledger")}))
    make.execute(task_context)
    assert recorded(tmp_path, "outcome") == [{"outcome": "nothing-to-do"}]


def test_a_ledger_that_is_down_costs_one_warning_and_keeps_the_row(
    tmp_path: Path, task_context: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger").write_text("not a folder")
    asked = {"table_uri": str(tmp_path / "t"), "ledger": str(tmp_path / "ledger")}
    assert DeltaCheckpointOperator(task_id="c", **asked).execute(task_context)["status"]
    (told,) = [each for each in caplog.messages if "the ledger was not written" in each]
    assert "the next run delivers its rows" in told
    assert len([*(tmp_path / "kept/ledger").iterdir()]) == 1
