"""Writes checkpoints, so that readers need not replay the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.checkpoint.operation import apply, plan
    from delta_maintenance.operations.checkpoint.options import (
        CheckpointKind,
        CheckpointOptions,
        CheckpointPlan,
        CheckpointResult,
        Engine,
        Incremental,
    )

__all__ = [
    "CheckpointKind",
    "CheckpointOptions",
    "CheckpointPlan",
    "CheckpointResult",
    "Engine",
    "Incremental",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CheckpointKind": "options",
        "CheckpointOptions": "options",
        "CheckpointPlan": "options",
        "CheckpointResult": "options",
        "Engine": "options",
        "Incremental": "options",
        "apply": "operation",
        "plan": "operation",
    },
)
