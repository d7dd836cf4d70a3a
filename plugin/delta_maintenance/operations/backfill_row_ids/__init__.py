"""Assigns row IDs to every file of a table and enables row tracking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.backfill_row_ids.operation import (
        BackfillRowIdsOptions,
        BackfillRowIdsPlan,
        BackfillRowIdsResult,
        apply,
        plan,
    )

__all__ = [
    "BackfillRowIdsOptions",
    "BackfillRowIdsPlan",
    "BackfillRowIdsResult",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "BackfillRowIdsOptions": "operation",
        "BackfillRowIdsPlan": "operation",
        "BackfillRowIdsResult": "operation",
        "apply": "operation",
        "plan": "operation",
    },
)
