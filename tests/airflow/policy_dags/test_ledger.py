"""What the Dags do is recorded in the ledger of the policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.ledger import LedgerTable
from delta_maintenance.storage import open_store
from tests.support.orchestrators.policy_dags import Somebody
from tests.support.tables.overdue_tables import overdue_table

pytestmark = [
    pytest.mark.airflow,
    # Caused by the libraries of Airflow.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]


def recorded(tmp_path: Path, *columns: str) -> list[dict[str, Any]]:
    found = LedgerTable(open_store(str(tmp_path / "ledger"))).read(columns).to_pylist()
    return sorted(found, key=lambda row: str(row["operation"]))


@pytest.fixture
def with_ledger(policy: Callable[..., Path], tmp_path: Path) -> Path:
    overdue_table(tmp_path / "t")
    path = policy({"name": "t", "uri": str(tmp_path / "t")}, checkpoint={"max_commits": 5})
    document = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**document, "ledger": str(tmp_path / "ledger")}))
    return path


def test_runs_have_rows_with_their_tasks(
    with_ledger: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    assert run("delta_maintenance")["state"] == "success"
    (row,) = recorded(tmp_path, "operation", "outcome", "done_by", "link", "table_name")
    link = row.pop("link")
    assert link.startswith("/dags/delta_maintenance/runs/") and "/tasks/run" in link
    assert row == {
        "operation": "checkpoint",
        "outcome": "done",
        "done_by": "airflow",
        "table_name": "t",
    }
    # Nothing is due in the next run.
    assert run("delta_maintenance")["state"] == "success"
    assert len(recorded(tmp_path, "operation")) == 1


def test_a_ledger_that_cannot_be_written_fails_no_run(
    with_ledger: Path, run: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger").write_text("not a folder")
    assert run("delta_maintenance")["state"] == "success"
    assert "the ledger was not written" in caplog.text
    assert len([*(tmp_path / "kept/ledger").iterdir()]) == 1
    (tmp_path / "ledger").unlink()
    overdue_table(tmp_path / "u")
    document = yaml.safe_load(with_ledger.read_text())
    document["tables"].append({"name": "u", "uri": str(tmp_path / "u")})
    with_ledger.write_text(yaml.safe_dump(document))
    assert run("delta_maintenance")["state"] == "success"
    rows = recorded(tmp_path, "operation", "table_name")
    assert sorted(row["table_name"] for row in rows) == ["t", "u"]
    assert not [*(tmp_path / "kept/ledger").iterdir()]


def test_rows_of_approved_plans_name_the_person_who_approved_them(
    with_ledger: Path, run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    document = yaml.safe_load(with_ledger.read_text())
    document["tables"][0] |= {"vacuum": {"every": "1 day"}, "approval": ["vacuum"]}
    with_ledger.write_text(yaml.safe_dump(document))
    somebody.name, somebody.given = "ann", {"plans": ["vacuum of t"]}
    assert run("delta_maintenance")["run_approved[0]"].told["operations"] == ["vacuum: done"]
    columns = ("operation", "outcome", "approved_by", "freed", "bytes_freed", "bytes_deleted")
    checkpoint, *vacuums = recorded(tmp_path, *columns)
    assert checkpoint["approved_by"] is None
    by_outcome = {row["outcome"]: row for row in vacuums}
    assert by_outcome["needs-approval"]["approved_by"] is None
    done = by_outcome["done"]
    assert (done["approved_by"], done["freed"]) == ("ann", "freed")
    assert done["bytes_freed"] == done["bytes_deleted"] > 0


def test_rows_of_manual_runs_name_an_approver_only_if_one_was_asked(
    with_ledger: Path, run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    somebody.name = "bob"
    for operation in ("checkpoint", "vacuum"):
        found = run("delta_manual", run_conf={"operation": operation, "tables": ["t"]})
        assert found["one_table.run[0]"].told["operations"] == [f"{operation}: done"]
    rows = recorded(tmp_path, "operation", "outcome", "approved_by")
    named = {row["operation"]: row["approved_by"] for row in rows if row["outcome"] == "done"}
    assert named == {"checkpoint": None, "vacuum": "bob"}


def test_within_a_budget_the_dag_does_the_best_work_and_says_how_much_waits(
    with_ledger: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    overdue_table(tmp_path / "u")
    document = yaml.safe_load(with_ledger.read_text())
    document["tables"].append({"name": "u", "uri": str(tmp_path / "u")})
    document["tables"][0] |= {"vacuum": {"every": "1 day"}}
    # The checkpoints are expected to take 15 each, the vacuum 19.
    document |= {"budget": {"run": {"requests": 31}}}
    with_ledger.write_text(yaml.safe_dump(document))
    done = run("delta_maintenance")
    assert done["summary"].told["text"] == (
        "2 tables with work: 2 done; 1 operation deferred to the next run, because of the budget"
    )
    (rows,) = done["tables_with_work"].told
    (allotment,) = [row["allotment"] for row in rows if row["name"] == "t"]
    (why,) = allotment["deferred"].values()
    assert [*allotment["deferred"]] == ["vacuum"] and "it needs 19, with 1 of" in why
    columns = ("operation", "table_name", "outcome")
    assert [tuple(row.values()) for row in recorded(tmp_path, *columns)][2:] == [
        ("vacuum", "t", "deferred")
    ]
    assert (tmp_path / "t/0.parquet").exists()
    # Nothing else waits, so that the next run has room for it.
    assert run("delta_maintenance")["state"] == "success"
    assert not (tmp_path / "t/0.parquet").exists()
