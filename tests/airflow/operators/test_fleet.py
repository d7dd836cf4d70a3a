"""A policy of 45 tables of which ten hold up none of the others, in the tasks of Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.errors import FullStoreError
from delta_maintenance.policies import AssessmentStore
from delta_maintenance.policies import clones as clones_module
from delta_maintenance.storage.core import Put
from delta_maintenance_airflow.operators import batch_run
from delta_maintenance_airflow.operators import policy as policy_operators
from delta_maintenance_airflow.operators.batch_run import DeltaPolicyBatchOperator
from delta_maintenance_airflow.operators.batches import BatchLimits, divide_into_batches
from delta_maintenance_airflow.operators.policy import DeltaAssessOperator
from tests.support.tables.fleet import BAD, HEALTHY, StuckStores, fleet_policy, write_fleet


def test_all_others_are_assessed_and_maintained_while_stores_are_slow_or_silent(
    tmp_path: Path, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fleet(tmp_path)
    policy = str(fleet_policy(tmp_path))
    store = AssessmentStore(str(tmp_path / "kept"))
    for module in (policy_operators, batch_run):
        monkeypatch.setattr(module, "assessment_store", lambda: store)
    monkeypatch.setattr("delta_maintenance_airflow.policy_work.assessment_store", lambda: store)
    monkeypatch.setattr(policy_operators, "_ASSESSING", 2.0)
    monkeypatch.setattr(clones_module, "_PATIENCE", 0.3)
    monkeypatch.setattr(clones_module, "_BRIEFLY", 0.1)
    stuck = StuckStores(monkeypatch)
    try:
        tables = [{"name": name, "uri": str(tmp_path / name)} for name in sorted(HEALTHY | BAD)]
        assess = DeltaAssessOperator(task_id="assess", tables=tables, policy=policy)
        rows = {row["name"]: row for row in assess.execute(task_context)}
        assert {name for name, row in rows.items() if row["due"]} >= HEALTHY
        silent = stuck.names - {"huge"}
        assert {name for name, row in rows.items() if row.get("alone")} == silent
        due = [row for row in rows.values() if row["due"]]
        batches = divide_into_batches(due, BatchLimits(tables=50, at_once=1))
        assert {len(b) for b in batches if {row["name"] for row in b} & silent} == {1}
        healthy = [row for batch in batches for row in batch if row["name"] in HEALTHY]
        run = DeltaPolicyBatchOperator(task_id="run", tables=healthy, policy=policy)
        done = run.execute(task_context)
        assert {(row["name"], row["status"]) for row in done} == {(n, "done") for n in HEALTHY}
        assert not [name for name in HEALTHY if (tmp_path / name / "old.parquet").exists()]
        assert not stuck.gave_up and not stuck.released.is_set()
    finally:
        stuck.released.set()


def test_a_folder_of_assessments_on_a_full_disk_holds_up_no_table(
    tmp_path: Path,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_fleet(tmp_path)
    policy = str(fleet_policy(tmp_path))
    store = AssessmentStore(str(tmp_path / "kept"))

    def put(path: str, data: bytes) -> Put:
        raise FullStoreError("cannot write: no space left")

    monkeypatch.setattr(store.store, "put", put)
    monkeypatch.setattr(store.store, "put_if_absent", put)
    for module in (policy_operators, batch_run):
        monkeypatch.setattr(module, "assessment_store", lambda: store)
    monkeypatch.setattr("delta_maintenance_airflow.policy_work.assessment_store", lambda: store)
    tables = [{"name": name, "uri": str(tmp_path / name)} for name in ("t00", "t01")]
    assess = DeltaAssessOperator(task_id="assess", tables=tables, policy=policy)
    rows = assess.execute(task_context)
    run = DeltaPolicyBatchOperator(task_id="run", tables=rows, policy=policy)
    assert [row["status"] for row in run.execute(task_context)] == ["done", "done"]
    for line in ("t00: the outcome cannot be stored", "t00 is worked on without a lease"):
        assert line in caplog.text
