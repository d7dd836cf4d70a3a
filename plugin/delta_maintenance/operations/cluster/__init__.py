"""Orders the rows of data files by several columns, so that readers skip more files."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.cluster.options import ClusterOptions, ClusterPlan, ClusterResult

if TYPE_CHECKING:
    from delta_maintenance.operations.cluster.operation import apply, plan, prepare

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan prepare")
