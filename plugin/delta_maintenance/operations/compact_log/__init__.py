"""Writes log compactions: one file in place of many commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.compact_log.operation import apply, plan
    from delta_maintenance.operations.compact_log.options import (
        CompactedWindow,
        CompactionWindow,
        CompactLogOptions,
        CompactLogPlan,
        CompactLogResult,
    )

__all__ = [
    "CompactLogOptions",
    "CompactLogPlan",
    "CompactLogResult",
    "CompactedWindow",
    "CompactionWindow",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CompactLogOptions": "options",
        "CompactLogPlan": "options",
        "CompactLogResult": "options",
        "CompactedWindow": "options",
        "CompactionWindow": "options",
        "apply": "operation",
        "plan": "operation",
    },
)
