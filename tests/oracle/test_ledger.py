"""Delta Spark reads the ledger."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from delta_maintenance.ledger import Delivery, LedgerTable
from delta_maintenance.ledger.rows import SCHEMA
from delta_maintenance.storage import open_store
from tests.support.oracle.delta_spark import DeltaSpark

pytestmark = pytest.mark.oracle


def test_spark_reads_the_ledger(delta_spark: DeltaSpark, tmp_path: Path) -> None:
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
    (found,) = delta_spark.rows(
        "SELECT table_name, operation, started_at, metrics['files_before'] AS files, cpu_seconds "
        f"FROM delta.`{tmp_path / 'ledger'}`"
    )
    shown = json.loads(found)
    assert shown.pop("started_at").startswith("2026-11-27T12:00:00")
    assert shown == {
        "table_name": "uc://main.sales.orders",
        "operation": "optimize",
        "files": 40,
        "cpu_seconds": 2.5,
    }
