"""Rewrites data files without deleted rows and dropped columns."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.purge.options import PurgeOptions, PurgePlan, PurgeResult

if TYPE_CHECKING:
    from delta_maintenance.operations.purge.operation import apply, plan, prepare

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan prepare")
