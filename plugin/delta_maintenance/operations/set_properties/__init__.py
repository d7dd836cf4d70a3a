"""Sets and removes table properties, with the features they need."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.set_properties.options import (
    SetPropertiesOptions,
    SetPropertiesPlan,
    SetPropertiesResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.set_properties.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
