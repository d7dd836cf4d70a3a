"""Checks of tables, and the problems that they find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from delta_maintenance.operations.fsck.examination import Examination, examine
from delta_maintenance.testing.table_builder import EPOCH_MS, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(days=2)


def look(table: TableBuilder, **options: Any) -> Examination:
    return examine(table.open(), now=NOW, **({"deep": True} | options))


VECTOR_FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def problems(table: TableBuilder) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in look(table).findings.first(20):
        found.setdefault(finding.kind, []).append(finding.problem)
    return found
