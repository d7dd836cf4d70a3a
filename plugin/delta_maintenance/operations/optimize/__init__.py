"""Merges small data files, and rewrites files with many deleted rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.optimize.operation import (
        apply,
        plan,
        prepare,
    )
    from delta_maintenance.operations.optimize.options import (
        OptimizeOptions,
        OptimizePlan,
        OptimizeResult,
    )

__all__ = [
    "OptimizeOptions",
    "OptimizePlan",
    "OptimizeResult",
    "apply",
    "plan",
    "prepare",
]

__getattr__ = lazy_names(
    __name__,
    {
        "OptimizeOptions": "options",
        "OptimizePlan": "options",
        "OptimizeResult": "options",
        "apply": "operation",
        "plan": "operation",
        "prepare": "operation",
    },
)
