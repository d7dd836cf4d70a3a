"""Rewrites data files without deleted rows and dropped columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.purge.operation import (
        apply,
        plan,
        prepare,
    )
    from delta_maintenance.operations.purge.options import (
        PurgeOptions,
        PurgePlan,
        PurgeResult,
    )

__all__ = [
    "PurgeOptions",
    "PurgePlan",
    "PurgeResult",
    "apply",
    "plan",
    "prepare",
]

__getattr__ = lazy_names(
    __name__,
    {
        "PurgeOptions": "options",
        "PurgePlan": "options",
        "PurgeResult": "options",
        "apply": "operation",
        "plan": "operation",
        "prepare": "operation",
    },
)
