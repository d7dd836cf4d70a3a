"""Adds a CHECK constraint after checking every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.add_constraint.operation import (
        FEATURE,
        SHOWN_FILES,
        AddConstraintOptions,
        AddConstraintPlan,
        AddConstraintResult,
        CheckedRows,
        ConstraintCheck,
        ViolatingFile,
        apply,
        plan,
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
        "AddConstraintOptions": "operation",
        "AddConstraintPlan": "operation",
        "AddConstraintResult": "operation",
        "CheckedRows": "operation",
        "ConstraintCheck": "operation",
        "FEATURE": "operation",
        "SHOWN_FILES": "operation",
        "ViolatingFile": "operation",
        "apply": "operation",
        "plan": "operation",
    },
)
