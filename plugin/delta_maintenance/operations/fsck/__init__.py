"""Checks the integrity of a table, and repairs damage that can be repaired without data loss."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.fsck.options import (
    FindingCount,
    FsckOptions,
    FsckPlan,
    FsckResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.fsck.operation import Survey, apply, plan, survey

__getattr__, __dir__ = lazy_names(__name__, operation="Survey apply plan survey")
