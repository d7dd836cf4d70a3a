"""Checks the integrity of a table, and repairs damage that can be repaired without data loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.fsck.operation import (
        Survey,
        apply,
        plan,
        survey,
    )
    from delta_maintenance.operations.fsck.options import (
        FindingCount,
        FsckOptions,
        FsckPlan,
        FsckResult,
    )

__all__ = [
    "FindingCount",
    "FsckOptions",
    "FsckPlan",
    "FsckResult",
    "Survey",
    "apply",
    "plan",
    "survey",
]

__getattr__ = lazy_names(
    __name__,
    {
        "FindingCount": "options",
        "FsckOptions": "options",
        "FsckPlan": "options",
        "FsckResult": "options",
        "Survey": "operation",
        "apply": "operation",
        "plan": "operation",
        "survey": "operation",
    },
)
