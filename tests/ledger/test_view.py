"""The ledger under the names of another history, as other engines read it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.ledger.rows import SCHEMA
from delta_maintenance.ledger.table import Delivery, LedgerTable
from delta_maintenance.ledger.view import operations_history
from delta_maintenance.storage import open_store
from tests.support.oracle.other_readers import DuckDb

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
ROWS = [
    {
        "operation": "optimize",
        "outcome": "done",
        "table_name": "uc://main.sales.orders",
        "cpu_seconds": 2.5,
        "metrics": [("files_before", 40), ("files_after", 1), ("bytes_before", 400)],
    },
    {
        "operation": "vacuum",
        "outcome": "failed",
        "error": "it's gone",
        "table_name": "lake/v1.2",
        "bytes_deleted": 7,
    },
    {"operation": "compact-log", "outcome": "nothing-to-do", "table_name": "a"},
    {"operation": "vacuum", "outcome": "needs-approval", "table_name": "waits"},
    {"operation": None, "outcome": "failed", "table_name": "unread"},
]
QUERY = """SELECT catalog_name, schema_name, table_name, operation_type, operation_status,
    operation_metrics['number_of_compacted_files'], usage_quantity, usage_unit
  FROM predictive_optimization_operations_history ORDER BY operation_id"""


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    rows = [
        {"month": "2026-11", "row_id": f"r-{number}", "run_id": "r", "started_at": NOW, **row}
        for number, row in enumerate(ROWS)
    ]
    table = LedgerTable(open_store(str(tmp_path / "it's a ledger")))
    table.append(Delivery(run_id="r", rows=pa.Table.from_pylist(rows, schema=SCHEMA)))
    return str(tmp_path / "it's a ledger")


def check(rows: list[tuple[Any, ...]]) -> None:
    assert [tuple(row)[:6] for row in rows] == [
        ("main", "sales", "orders", "COMPACTION", "SUCCESSFUL", "40"),
        (None, None, "lake/v1.2", "VACUUM", "FAILED: it's gone", None),
        (None, None, "a", "COMPACT_LOG", "SUCCESSFUL", None),
    ]
    assert float(rows[0][6]) == 2.5 and rows[0][7] == "CPU_SECONDS"


def test_duckdb_reads_the_view(ledger: str) -> None:
    pytest.importorskip("duckdb_extension_delta", reason="NO DUCKDB: install its delta extension")
    duck = DuckDb()
    duck.execute(operations_history(ledger, "duckdb"))
    check(duck.execute(QUERY))


def test_no_address_ends_its_quotation() -> None:
    assert "delta.`/a``b'c`" in operations_history("/a`b'c", "spark")
    assert "delta_scan('/a`b''c')" in operations_history("/a`b'c", "duckdb")
