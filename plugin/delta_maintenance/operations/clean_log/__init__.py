"""Deletes the log files that the retention of the table no longer needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.clean_log.operation import (
        LEAST_RETENTION,
        CleanedGroup,
        CleanLogOptions,
        CleanLogPlan,
        CleanLogResult,
        apply,
        plan,
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
        "CleanLogOptions": "operation",
        "CleanLogPlan": "operation",
        "CleanLogResult": "operation",
        "CleanedGroup": "operation",
        "LEAST_RETENTION": "operation",
        "apply": "operation",
        "plan": "operation",
    },
)
