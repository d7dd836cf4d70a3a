"""Keeps a version readable under a name, until a time or until it is released."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.keep_version.options import (
    KeepVersionOptions,
    KeepVersionPlan,
    KeepVersionResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.keep_version.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
