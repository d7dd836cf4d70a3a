"""Merges small data files, and rewrites files with many deleted rows."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.optimize.options import (
    OptimizeOptions,
    OptimizePlan,
    OptimizeResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.optimize.operation import apply, plan, prepare

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan prepare")
