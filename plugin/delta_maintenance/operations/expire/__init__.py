"""Removes rows that are older than a limit."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.expire.options import ExpireOptions, ExpirePlan, ExpireResult

if TYPE_CHECKING:
    from delta_maintenance.operations.expire.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
