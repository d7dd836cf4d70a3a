"""Sets or removes the clustering columns of a table."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.set_clustering.options import (
    SetClusteringOptions,
    SetClusteringPlan,
    SetClusteringResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.set_clustering.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
