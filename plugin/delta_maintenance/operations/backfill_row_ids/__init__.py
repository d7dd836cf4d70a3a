"""Assigns row IDs to every file of a table and enables row tracking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.backfill_row_ids.operation import (
        apply,
        plan,
    )
    from delta_maintenance.operations.backfill_row_ids.options import (
        BackfillRowIdsOptions,
        BackfillRowIdsPlan,
        BackfillRowIdsResult,
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
        "BackfillRowIdsOptions": "options",
        "BackfillRowIdsPlan": "options",
        "BackfillRowIdsResult": "options",
        "apply": "operation",
        "plan": "operation",
    },
)
