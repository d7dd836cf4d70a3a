"""Adds a CHECK constraint after checking every row."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.add_constraint.options import (
    SHOWN_FILES,
    AddConstraintOptions,
    AddConstraintPlan,
    AddConstraintResult,
    CheckedRows,
    ViolatingFile,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.add_constraint.operation import (
        FEATURE,
        ConstraintCheck,
        apply,
        plan,
    )

__getattr__, __dir__ = lazy_names(__name__, operation="ConstraintCheck FEATURE apply plan")
