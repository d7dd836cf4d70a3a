"""Deletes the log files that the retention of the table no longer needs."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.clean_log.options import (
    LEAST_RETENTION,
    CleanedGroup,
    CleanLogOptions,
    CleanLogPlan,
    CleanLogResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.clean_log.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
