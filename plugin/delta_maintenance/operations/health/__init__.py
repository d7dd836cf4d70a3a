"""Measures the health of a table from its snapshot and the listing of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.health.models import (
        TableHealth,
    )
    from delta_maintenance.operations.health.operation import (
        MAX_COMMITS,
        SMALL_FILE_BYTES,
        last_vacuum,
        measure,
    )

__all__ = [
    "MAX_COMMITS",
    "SMALL_FILE_BYTES",
    "TableHealth",
    "last_vacuum",
    "measure",
]

__getattr__ = lazy_names(
    __name__,
    {
        "MAX_COMMITS": "operation",
        "SMALL_FILE_BYTES": "operation",
        "TableHealth": "models",
        "last_vacuum": "operation",
        "measure": "operation",
    },
)
