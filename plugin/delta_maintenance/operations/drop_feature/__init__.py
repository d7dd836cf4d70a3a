"""Removes a table feature from a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.drop_feature.operation import (
        apply,
        plan,
    )
    from delta_maintenance.operations.drop_feature.options import (
        DropFeatureOptions,
        DropFeaturePlan,
        DropFeatureResult,
    )

__all__ = [
    "DropFeatureOptions",
    "DropFeaturePlan",
    "DropFeatureResult",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "DropFeatureOptions": "options",
        "DropFeaturePlan": "options",
        "DropFeatureResult": "options",
        "apply": "operation",
        "plan": "operation",
    },
)
