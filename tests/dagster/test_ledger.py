"""What Dagster does is recorded in the ledger of the policy file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml

from delta_maintenance.ledger import LedgerTable
from delta_maintenance.operations.core import Freed
from delta_maintenance.policies import OperationOutcome, RunResult
from delta_maintenance.policies.definition import load_policy
from delta_maintenance.storage import open_store
from delta_maintenance_dagster import DeltaTable, Execution, build_definitions, metadata
from tests.support.markdown import markdown_rows
from tests.support.tables.overdue_tables import overdue_table

pytestmark = pytest.mark.dagster


def definitions(tmp_path: Path, *tables: str, **defaults: object) -> dg.Definitions:
    for name in tables:
        if not (tmp_path / name).exists():
            overdue_table(tmp_path / name)
    document = {
        "version": 1,
        "ledger": str(tmp_path / "ledger"),
        "prices": {"currency": "EUR", "cpu_hour": 1},
        "defaults": {"checkpoint": {"max_commits": 5}, **defaults},
        "tables": [{"name": name, "uri": str(tmp_path / name)} for name in tables],
    }
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(document))
    policy = load_policy(tmp_path / "policy.yaml")
    return build_definitions(
        [
            DeltaTable(policy=table, key=dg.AssetKey([table.name]), among=policy)
            for table in policy.named_tables
        ],
        execution=Execution(state=str(tmp_path / "state")),
    )


def run(tmp_path: Path, *tables: str, instance: dg.DagsterInstance) -> bool:
    job = definitions(tmp_path, *tables).resolve_job_def("delta_maintenance")
    return bool(job.execute_in_process(instance=instance, raise_on_error=False).success)


def waiting(instance: dg.DagsterInstance) -> list[str]:
    """The plans of the table `a` that wait for an approval."""
    event = instance.get_latest_materialization_event(dg.AssetKey(["a", "maintenance"]))
    assert event is not None and event.asset_materialization is not None
    rows = markdown_rows(str(event.asset_materialization.metadata["waiting"].value))
    return [row["plan"] for row in rows]


def test_runs_have_rows_with_their_runs(tmp_path: Path) -> None:
    with dg.instance_for_test() as instance:
        assert run(tmp_path, "a", "b", instance=instance)
        found = LedgerTable(open_store(str(tmp_path / "ledger"))).read(
            ("table_name", "operation", "outcome", "done_by", "link")
        )
        rows = sorted(found.to_pylist(), key=lambda row: row["table_name"])
        links = {row.pop("link") for row in rows}
        (record,) = instance.get_run_records()
        assert links == {f"/runs/{record.dagster_run.run_id}"}
    done = {"operation": "checkpoint", "outcome": "done", "done_by": "dagster"}
    assert rows == [{"table_name": name, **done} for name in ("a", "b")]


def test_a_ledger_that_cannot_be_written_fails_no_run(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("not a folder")
    with dg.instance_for_test() as instance:
        assert run(tmp_path, "a", instance=instance)
        assert len([*(tmp_path / "state/ledger").iterdir()]) == 1
        (tmp_path / "ledger").unlink()
        assert run(tmp_path, "a", "b", instance=instance)
    assert not [*(tmp_path / "state/ledger").iterdir()]
    names = LedgerTable(open_store(str(tmp_path / "ledger"))).read(["table_name"])["table_name"]
    assert sorted(names.to_pylist()) == ["a", "b"]


@pytest.mark.parametrize("user", ["ann", None])
def test_rows_of_approved_plans_name_the_person_or_else_the_run(
    tmp_path: Path, user: str | None
) -> None:
    defined = definitions(tmp_path, "a", vacuum={"every": "1 day"}, approval=["vacuum"])
    with dg.instance_for_test() as instance:
        defined.resolve_job_def("delta_maintenance").execute_in_process(instance=instance)
        config = {"ops": {"run_approved_plans": {"config": {"plans": waiting(instance)}}}}
        approved = defined.resolve_job_def("delta_maintenance_approve").execute_in_process(
            instance=instance, run_config=config, tags={} if user is None else {"user": user}
        )
    columns = ("operation", "outcome", "approved_by", "freed")
    rows = LedgerTable(open_store(str(tmp_path / "ledger"))).read(columns).to_pylist()
    told = {(row["operation"], row["outcome"]): row["approved_by"] for row in rows}
    assert told == {
        ("checkpoint", "done"): None,
        ("vacuum", "needs-approval"): None,
        ("vacuum", "done"): user or f"run {approved.run_id}",
    }
    assert [row["freed"] for row in rows if row["freed"]] == ["freed"]


def test_rows_of_approved_plans_are_kept_while_the_ledger_is_down(tmp_path: Path) -> None:
    defined = definitions(tmp_path, "a", vacuum={"every": "1 day"}, approval=["vacuum"])
    with dg.instance_for_test() as instance:
        defined.resolve_job_def("delta_maintenance").execute_in_process(instance=instance)
        (tmp_path / "ledger").rename(tmp_path / "away")
        (tmp_path / "ledger").write_text("not a folder")
        config = {"ops": {"run_approved_plans": {"config": {"plans": waiting(instance)}}}}
        job = defined.resolve_job_def("delta_maintenance_approve")
        assert job.execute_in_process(instance=instance, run_config=config).success
    assert len([*(tmp_path / "state/ledger").iterdir()]) == 1


def test_the_metadata_has_the_last_operations_with_their_cost_and_what_was_freed(
    tmp_path: Path,
) -> None:
    defined = definitions(tmp_path, "a", "b", vacuum={"every": "1 day"})
    with dg.instance_for_test() as instance:
        job = defined.resolve_job_def("delta_maintenance")
        assert job.execute_in_process(instance=instance).success
        event = instance.get_latest_materialization_event(dg.AssetKey(["a", "maintenance"]))
        assert event is not None and event.asset_materialization is not None
        facts = {name: each.value for name, each in event.asset_materialization.metadata.items()}
    rows = markdown_rows(facts["last_operations"])
    assert sorted(row["operation"] for row in rows) == ["checkpoint", "vacuum"]
    assert all(row["by"] == "dagster" and row["cost"].endswith(" EUR") for row in rows)
    assert all(float(row["cost"].removesuffix(" EUR").removeprefix("<")) > 0 for row in rows)
    assert facts["bytes_freed"] == facts["bytes_deleted"] > 0
    assert "not_freed" not in facts and "freed_at" not in facts


def test_the_metadata_says_until_when_deleted_bytes_are_paid_for() -> None:
    now = datetime(2026, 11, 27, tzinfo=UTC)
    freed = Freed(deleted_bytes=9, state="later", at=now + timedelta(days=7), why="the soft delete")
    outcome = OperationOutcome(
        operation="vacuum", status="done", reason="due", started_at=now, freed=freed
    )
    result = RunResult(
        name="t", uri="/t", status="done", started_at=now, ended_at=now, outcomes=(outcome,)
    )
    told = {name: each.value for name, each in metadata.of_freed(result).items()}
    assert told["bytes_freed"] == 0
    assert told["not_freed"].startswith("9 B deleted, freed by 2026-12-04")
    assert told["freed_at"] == (now + timedelta(days=7)).timestamp()


def test_the_last_line_says_what_waits(tmp_path: Path) -> None:
    defined = definitions(tmp_path, "a", vacuum={"every": "1 day"}, approval=["vacuum"])
    with dg.instance_for_test() as instance:
        job = defined.resolve_job_def("delta_maintenance")
        ended = job.execute_in_process(instance=instance)
        told = [each.user_message for each in instance.all_logs(ended.run_id)]
    assert any(each.endswith("; vacuum waits for approval: 1 file, 486 B") for each in told)
