"""A job that nothing of the library waits for adds its row to a ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.ledger import LedgerTable
from delta_maintenance.spark import job
from delta_maintenance.storage import open_store
from delta_maintenance.submission import JobSpec
from tests.support.tables.overdue_tables import overdue_table

NO_CLUSTER = cast(SparkSession, None)
"""Enough for jobs whose options name the local engine."""
COLUMNS = ("started_at", "operation", "outcome", "done_by", "engine", "table_name", "versions")


def rows_of(ledger: Path, *more: str) -> list[dict[str, Any]]:
    found = LedgerTable(open_store(str(ledger))).read([*COLUMNS, *more]).sort_by("started_at")
    return cast("list[dict[str, Any]]", found.drop_columns("started_at").to_pylist())


def planning(folder: Path, *, ledger: str, ledger_state: str | None = None) -> JobSpec:
    """A specification for which no Spark is needed."""
    return JobSpec(
        operation="optimize",
        table=str(folder / "table"),
        options={"engine": "local"},
        plan_only=True,
        ledger=ledger,
        ledger_state=ledger_state,
    )


@pytest.mark.spark
def test_plans_results_and_failures_have_a_row_each(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overdue_table(tmp_path / "table")
    asked = {
        "operation": "optimize",
        "table": str(tmp_path / "table"),
        "catalog_name": "uc://main.sales.orders",
        "ledger": str(tmp_path / "ledger"),
    }
    for more, status in (
        ({"plan_only": True}, 0),
        ({}, 0),
        ({"options": {"where": "no condition"}}, 2),
    ):
        assert job.main(["--spec", json.dumps({**asked, **more})]) == status
    rows = rows_of(tmp_path / "ledger", "error", "spark_task_seconds", "bytes_freed")
    assert "a condition" in rows[2].pop("error")
    assert [row.pop("error") for row in rows[:2]] == [None, None]
    assert rows[0].pop("spark_task_seconds") is not None
    assert rows[1].pop("spark_task_seconds") > 0
    rows[2].pop("spark_task_seconds")
    common = {
        "operation": "optimize",
        "done_by": "spark",
        "engine": "spark",
        "table_name": asked["catalog_name"],
        "bytes_freed": None,
    }
    assert rows == [
        {"outcome": "planned", "versions": 0, **common},
        {"outcome": "done", "versions": 1, **common},
        {"outcome": "failed", "versions": 0, **common},
    ]
    assert "warning" not in capfd.readouterr().out


def test_a_ledger_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overdue_table(tmp_path / "table")
    (tmp_path / "file").write_text("not a folder")
    for ledger, problem in (
        (tmp_path / "file", "its rows are lost"),
        (tmp_path / "table/ledger", "lie within each other"),
        (tmp_path, "lie within each other"),
    ):
        spec = planning(tmp_path, ledger=str(ledger))
        assert job.run(spec, NO_CLUSTER)["files"] > 1
        [warning] = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
        assert "the ledger was not written" in warning and problem in warning
    assert not (tmp_path / "table/ledger").exists() and not (tmp_path / "_delta_log").exists()


def test_a_row_that_cannot_be_added_waits_in_the_state_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overdue_table(tmp_path / "table")
    ledger, state = tmp_path / "ledger", tmp_path / "state"
    state.mkdir()
    ledger.write_text("not a folder")
    spec = planning(tmp_path, ledger=str(ledger), ledger_state=str(state))
    job.run(spec, NO_CLUSTER)
    assert "the next run delivers its rows" in capsys.readouterr().out
    ledger.unlink()
    job.run(spec, NO_CLUSTER)
    assert "warning" not in capsys.readouterr().out
    assert [row["outcome"] for row in rows_of(ledger)] == ["planned", "planned"]


def test_a_state_folder_that_cannot_be_used_costs_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overdue_table(tmp_path / "table")
    spec = planning(tmp_path, ledger=str(tmp_path / "ledger"), ledger_state="unknown://state")
    job.run(spec, NO_CLUSTER)
    assert "warning: the state folder cannot be used" in capsys.readouterr().out
    assert [row["outcome"] for row in rows_of(tmp_path / "ledger")] == ["planned"]


def test_an_address_that_is_none_is_refused_before_the_work(tmp_path: Path) -> None:
    overdue_table(tmp_path / "table")
    spec = planning(tmp_path, ledger="s3://user:hunter2@lake/ledger")
    with pytest.raises(InvalidRequestError, match="plain address") as raised:
        job.run(spec, NO_CLUSTER)
    assert "hunter2" not in str(raised.value)
