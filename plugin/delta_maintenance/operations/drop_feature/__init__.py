"""Removes a table feature from a table."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.drop_feature.options import (
    DropFeatureOptions,
    DropFeaturePlan,
    DropFeatureResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.drop_feature.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
