"""Health of tables, and tombstones of deleted files."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from delta_maintenance.operations.health import TableHealth, measure
from tests.support.tables.actions import remove
from tests.support.tables.table_builder import TableBuilder
from tests.support.tables.vacuum_tables import NOW, days_ago

DAY = timedelta(days=1)


def health(table: TableBuilder, **options: Any) -> TableHealth:
    """Measures the health at the tests' instant."""
    return measure(table.open().snapshot(), now=NOW, **options)


def gone(path: str, days: float, size: int | None = None, **fields: Any) -> dict[str, Any]:
    """Returns a remove with this age and a reliable size."""
    told = {} if size is None else {"size": size, "extendedFileMetadata": True}
    return remove(path, deletionTimestamp=days_ago(days), **told, **fields)
