"""Adds a CHECK constraint after checking every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.add_constraint.operation import (
        FEATURE,
        ConstraintCheck,
        apply,
        plan,
    )
    from delta_maintenance.operations.add_constraint.options import (
        SHOWN_FILES,
        AddConstraintOptions,
        AddConstraintPlan,
        AddConstraintResult,
        CheckedRows,
        ViolatingFile,
    )

__all__ = [
    "AddConstraintOptions",
    "AddConstraintPlan",
    "AddConstraintResult",
    "CheckedRows",
    "ConstraintCheck",
    "FEATURE",
    "SHOWN_FILES",
    "ViolatingFile",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AddConstraintOptions": "options",
        "AddConstraintPlan": "options",
        "AddConstraintResult": "options",
        "CheckedRows": "options",
        "ConstraintCheck": "operation",
        "FEATURE": "operation",
        "SHOWN_FILES": "options",
        "ViolatingFile": "options",
        "apply": "operation",
        "plan": "operation",
    },
)
