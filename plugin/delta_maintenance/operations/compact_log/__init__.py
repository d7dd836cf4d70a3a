"""Writes log compactions: one file in place of many commits."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.compact_log.options import (
    CompactedWindow,
    CompactionWindow,
    CompactLogOptions,
    CompactLogPlan,
    CompactLogResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.compact_log.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
