"""Tombstones, options and a failing store for the tests of vacuum."""

from __future__ import annotations

from typing import Any

from delta_maintenance.errors import StorageAccessError
from delta_maintenance.storage import MemoryStore
from tests.support.tables.actions import remove
from tests.support.tables.vacuum_tables import days_ago

WEEK_MS = 7 * 86_400_000
VECTOR = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
"""The file of `actions.deletion_vector()`."""


def removed(path: str, days: float, **fields: Any) -> Any:
    return remove(path, deletionTimestamp=days_ago(days), **fields)


class Stubborn(MemoryStore):
    """Fails to delete files with `stuck` in their names."""

    tries = 0

    def delete(self, path: str) -> None:
        if "stuck" in path:
            self.tries += 1
            raise StorageAccessError("access denied", file=path)
        super().delete(path)
