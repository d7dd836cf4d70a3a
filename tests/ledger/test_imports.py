"""The maintenance of other engines is imported once, with the numbers that they recorded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.ledger import Delivery, LedgerTable
from delta_maintenance.ledger.imports import import_history, imported_versions
from delta_maintenance.ledger.rows import SCHEMA
from delta_maintenance.policies.definition import Policy
from delta_maintenance.storage import open_store
from delta_maintenance.table.read import open_table
from tests.support.faults.fault_store import FaultStore
from tests.support.tables.actions import add, commit_info, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

SPARK = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"


@pytest.fixture
def builder(tmp_path: Path) -> TableBuilder:
    builder = TableBuilder(tmp_path / "table")
    builder.commit([protocol(), metadata()])
    return builder


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerTable:
    return LedgerTable(open_store(str(tmp_path / "ledger")))


def commit(builder: TableBuilder, operation: str, **info: Any) -> None:
    builder.commit([commit_info(operation, **{"engineInfo": SPARK, **info}), add(f"{id(info)}")])


def vacuum(builder: TableBuilder, *, deleted: int, status: str = "COMPLETED", **info: Any) -> None:
    planned = {"numFilesToDelete": "7", "sizeOfDataToDelete": "700"}
    commit(builder, "VACUUM START", operationMetrics=planned, **info)
    commit(
        builder,
        "VACUUM END",
        operationParameters={"status": status},
        operationMetrics={"numDeletedFiles": str(deleted)},
        **info,
    )


def imported(ledger: LedgerTable, builder: TableBuilder) -> int:
    root = str(builder.store.root)
    entry = {"name": "orders", "uri": root, "owner": "sales"}
    (table,) = Policy.model_validate({"version": 1, "tables": [entry]}).named_tables
    return import_history(ledger, open_table(root), table, imported=imported_versions(ledger))


def test_an_import_reads_only_what_is_new_of_a_long_ledger(
    ledger: LedgerTable, builder: TableBuilder, tmp_path: Path
) -> None:
    commit(builder, "OPTIMIZE")
    assert imported(ledger, builder) == 1
    row = {"month": "2026-11", "run_id": "r", "row_id": "r"}
    for number in range(20):
        found = pa.Table.from_pylist([{**row, "run_id": f"r{number}"}], schema=SCHEMA)
        ledger.append(Delivery(run_id=f"r{number}", rows=found, since_version=None))
    known = imported_versions(ledger)
    commit(builder, "REORG")
    counted = FaultStore(open_store(str(tmp_path / "ledger")))
    root = str(builder.store.root)
    (table,) = Policy.model_validate({"version": 1, "tables": [{"uri": root}]}).named_tables
    assert import_history(LedgerTable(counted), open_table(root), table, imported=known) == 1
    # The snapshot reads all commits, and the search for an earlier import none of them again.
    read = [step.path for step in counted.trace if step.kind == "read"]
    assert len(read) == len(set(read)) and len(read) < 30


def rows(ledger: LedgerTable, *names: str) -> list[tuple[Any, ...]]:
    found = ledger.read(("version_after", *names)).to_pylist()
    found.sort(key=lambda row: row["version_after"])
    return [tuple(row[name] for name in names) for row in found]


def test_only_the_maintenance_of_others_is_imported(
    ledger: LedgerTable, builder: TableBuilder
) -> None:
    commit(builder, "WRITE", operationMetrics={"numFiles": "3"})
    commit(
        builder,
        "OPTIMIZE",
        operationParameters={"zOrderBy": "[]"},
        operationMetrics={"numRemovedFiles": "12", "filesAdded": '{"avg": 1}', "bad": True},
    )
    commit(builder, "OPTIMIZE", operationParameters={"zOrderBy": '["a"]'})
    commit(
        builder, "OPTIMIZE", operationParameters="?", engineInfo=None, clientVersion="delta-rs.1"
    )
    commit(builder, "OPTIMIZE", engineInfo="delta-maintenance/0.2.0")
    vacuum(builder, deleted=7)
    vacuum(builder, deleted=6)
    vacuum(builder, deleted=2, status="FAILED")
    vacuum(builder, deleted=7, engineInfo="delta-maintenance/0.2.0")
    assert imported(ledger, builder) == 6
    assert rows(ledger, "operation", "outcome", "error", "bytes_deleted", "done_by") == [
        ("optimize", "done", None, None, "other"),
        ("cluster", "done", None, None, "other"),
        ("optimize", "done", None, None, "other"),
        ("vacuum", "done", None, 700, "other"),
        # Fewer files than announced: how many bytes these had is not known.
        ("vacuum", "done", None, None, "other"),
        ("vacuum", "failed", "FAILED", None, "other"),
    ]
    named = rows(ledger, "table_name", "owner", "engine_info", "metrics")
    assert named[0] == ("orders", "sales", SPARK, [("files_before", 12)])
    assert named[2][2] == "delta-rs.1"


def test_an_import_continues_where_the_last_one_ended(
    ledger: LedgerTable, builder: TableBuilder
) -> None:
    commit(builder, "OPTIMIZE")
    assert imported(ledger, builder) == 1
    assert imported(ledger, builder) == 0
    commit(builder, "REORG")
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda _: imported(ledger, builder), range(4))) == 1
    assert rows(ledger, "operation") == [("optimize",), ("purge",)]
