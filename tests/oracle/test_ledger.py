"""Delta Spark reads the ledger, and the view of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from delta_maintenance.ledger.rows import SCHEMA
from delta_maintenance.ledger.table import Delivery, LedgerTable
from delta_maintenance.ledger.view import operations_history
from delta_maintenance.storage import open_store
from tests.support.oracle.delta_spark import DeltaSpark

pytestmark = pytest.mark.oracle


def test_spark_reads_the_ledger_and_its_view(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    row = {
        "month": "2026-11",
        "row_id": "r-0",
        "run_id": "r",
        "started_at": datetime(2026, 11, 27, 12, tzinfo=UTC),
        "operation": "optimize",
        "outcome": "done",
        "table_name": "uc://main.sales.orders",
        "cpu_seconds": 2.5,
        "metrics": [("files_before", 40)],
    }
    ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
    ledger.append(Delivery(run_id="r", rows=pa.Table.from_pylist([row], schema=SCHEMA)))
    delta_spark.sql(operations_history(str(tmp_path / "ledger"), "spark"))
    (found,) = delta_spark.rows(
        "SELECT catalog_name, schema_name, table_name, operation_type, start_time, "
        "operation_metrics['number_of_compacted_files'] AS files, usage_quantity "
        "FROM predictive_optimization_operations_history"
    )
    shown = json.loads(found)
    assert shown.pop("start_time").startswith("2026-11-27T12:00:00")
    assert shown == {
        "catalog_name": "main",
        "schema_name": "sales",
        "table_name": "orders",
        "operation_type": "COMPACTION",
        "files": "40",
        "usage_quantity": 2.5,
    }
