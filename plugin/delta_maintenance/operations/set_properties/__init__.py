"""Sets and removes table properties, with the features they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.set_properties.operation import (
        apply,
        plan,
    )
    from delta_maintenance.operations.set_properties.options import (
        SetPropertiesOptions,
        SetPropertiesPlan,
        SetPropertiesResult,
    )

__all__ = [
    "SetPropertiesOptions",
    "SetPropertiesPlan",
    "SetPropertiesResult",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "SetPropertiesOptions": "options",
        "SetPropertiesPlan": "options",
        "SetPropertiesResult": "options",
        "apply": "operation",
        "plan": "operation",
    },
)
