"""Writes checkpoints, so that readers need not replay the log."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.checkpoint.options import (
    CheckpointKind,
    CheckpointOptions,
    CheckpointPlan,
    CheckpointResult,
    Engine,
    Incremental,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.checkpoint.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
