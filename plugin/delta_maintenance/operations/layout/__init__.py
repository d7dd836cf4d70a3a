"""Reports whether clustering pays, for each column and for the user's own queries."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.layout.options import LayoutOptions, LayoutPlan, LayoutResult

if TYPE_CHECKING:
    from delta_maintenance.operations.layout.operation import apply, plan, prepare

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan prepare")
