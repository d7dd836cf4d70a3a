"""Deletes files that no retained version of the table needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.vacuum.operation import (
        apply,
        plan,
    )
    from delta_maintenance.operations.vacuum.options import (
        LEAST_RETENTION,
        VacuumOptions,
        VacuumPlan,
        VacuumResult,
    )
    from delta_maintenance.operations.vacuum.planning import (
        Survey,
        engine_for,
        survey,
    )

__all__ = [
    "LEAST_RETENTION",
    "Survey",
    "VacuumOptions",
    "VacuumPlan",
    "VacuumResult",
    "apply",
    "engine_for",
    "plan",
    "survey",
]

__getattr__ = lazy_names(
    __name__,
    {
        "LEAST_RETENTION": "options",
        "Survey": "planning",
        "VacuumOptions": "options",
        "VacuumPlan": "options",
        "VacuumResult": "options",
        "apply": "operation",
        "engine_for": "planning",
        "plan": "operation",
        "survey": "planning",
    },
)
