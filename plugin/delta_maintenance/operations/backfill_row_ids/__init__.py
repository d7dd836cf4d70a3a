"""Assigns row IDs to every file of a table and enables row tracking."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.backfill_row_ids.options import (
    BackfillRowIdsOptions,
    BackfillRowIdsPlan,
    BackfillRowIdsResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.backfill_row_ids.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
