"""Deletes files that no retained version of the table needs."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.vacuum.options import (
    LEAST_RETENTION,
    VacuumOptions,
    VacuumPlan,
    VacuumResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.vacuum.operation import apply, plan
    from delta_maintenance.operations.vacuum.planning import Survey, engine_for, survey

__getattr__, __dir__ = lazy_names(
    __name__, operation="apply plan", planning="Survey engine_for survey"
)
