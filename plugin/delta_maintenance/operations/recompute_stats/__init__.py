"""Recomputes statistics of data files that are missing or wrong."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.recompute_stats.options import (
    RecomputeStatsOptions,
    RecomputeStatsPlan,
    RecomputeStatsResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.recompute_stats.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
