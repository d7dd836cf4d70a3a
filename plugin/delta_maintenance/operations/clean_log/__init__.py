"""Deletes the log files that the retention of the table no longer needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.clean_log.operation import (
        apply,
        plan,
    )
    from delta_maintenance.operations.clean_log.options import (
        LEAST_RETENTION,
        CleanedGroup,
        CleanLogOptions,
        CleanLogPlan,
        CleanLogResult,
    )

__all__ = [
    "CleanLogOptions",
    "CleanLogPlan",
    "CleanLogResult",
    "CleanedGroup",
    "LEAST_RETENTION",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CleanLogOptions": "options",
        "CleanLogPlan": "options",
        "CleanLogResult": "options",
        "CleanedGroup": "options",
        "LEAST_RETENTION": "options",
        "apply": "operation",
        "plan": "operation",
    },
)
