"""The budget of a policy in the tasks of a Dag: the choice, the account, and what waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.ledger import LedgerTable
from delta_maintenance.policies import AssessmentStore
from delta_maintenance.storage import open_store
from delta_maintenance_airflow.operators.batch_run import DeltaPolicyBatchOperator
from delta_maintenance_airflow.operators.policy import DeltaAssessOperator, DeltaPolicyRunOperator
from delta_maintenance_airflow.operators.scheduled import DeltaSelectWorkOperator
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.airflow


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes the policy of tables `t1`, `t2` and so on, on each of which a checkpoint is due."""
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "state"))

    def write(commits: tuple[int, ...], **budget: Any) -> str:
        tables = []
        for number, count in enumerate(commits, 1):
            table = TableBuilder(tmp_path / f"t{number}")
            table.commit([protocol(), metadata()])
            table.checkpoint(0)
            for file in range(count):
                table.commit([add(f"{file}.parquet")])
            tables.append({"name": f"t{number}", "uri": str(tmp_path / f"t{number}")})
        path = tmp_path / "policy.yaml"
        document = {
            "version": 1,
            "defaults": {"checkpoint": {"max_commits": 1}},
            "tables": tables,
            "ledger": {"uri": str(tmp_path / "ledger")},
        }
        path.write_text(yaml.safe_dump(document | ({"budget": budget} if budget else {})))
        return str(path)

    return write


def assessed(path: str, context: dict[str, Any]) -> list[dict[str, Any]]:
    tables = yaml.safe_load(Path(path).read_text())["tables"]
    return DeltaAssessOperator(task_id="a", tables=tables, policy=path).execute(context)


def select(path: str, context: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    rows = assessed(path, context)
    operator = DeltaSelectWorkOperator(task_id="s", assessed=[rows], policy=path, **options)
    chosen: list[dict[str, Any]] = operator.execute(context)
    return chosen

def test_x(policy, task_context, tmp_path, caplog):
    import logging
    caplog.set_level(logging.INFO)
    path = policy((3, 9, 6), run={"requests": 30})
    rows = select(path, task_context)
    for r in rows: print(json.dumps(r))
    for m in caplog.messages: print(m)
    print(task_context["ti"].xcom_push.call_args_list)
    store = AssessmentStore(str(tmp_path / "state"))
    for t in yaml.safe_load(Path(path).read_text())["tables"]:
        e = store.entry_of(t["uri"], t["name"])
        print([(o.operation, o.status, o.reason, o.requests, o.bytes_to_read, str(o.due_at)) for o in e.assessment.operations])
    out = DeltaPolicyBatchOperator(task_id="r", tables=rows, policy=path).execute(task_context)
    print(out)
    import os
    print(os.listdir(tmp_path/"state"/"budget") if (tmp_path/"state"/"budget").exists() else os.listdir(tmp_path/"state"))
    print(LedgerTable(open_store(str(tmp_path / "ledger"))).read(("table_name","operation","outcome","reason","expected_requests")).to_pylist())
