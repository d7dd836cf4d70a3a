"""Writes checkpoints, so that readers need not replay the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.checkpoint.operation import (
        CheckpointKind,
        CheckpointOptions,
        CheckpointPlan,
        CheckpointResult,
        Engine,
        apply,
        plan,
    )

__all__ = [
    "CheckpointKind",
    "CheckpointOptions",
    "CheckpointPlan",
    "CheckpointResult",
    "Engine",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CheckpointKind": "operation",
        "CheckpointOptions": "operation",
        "CheckpointPlan": "operation",
        "CheckpointResult": "operation",
        "Engine": "operation",
        "apply": "operation",
        "plan": "operation",
    },
)
