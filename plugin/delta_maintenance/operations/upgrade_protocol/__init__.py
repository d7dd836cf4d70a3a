"""Adds table features to the protocol of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.upgrade_protocol.operation import (
        apply,
        plan,
    )
    from delta_maintenance.operations.upgrade_protocol.options import (
        UpgradeProtocolOptions,
        UpgradeProtocolPlan,
        UpgradeProtocolResult,
    )

__all__ = [
    "UpgradeProtocolOptions",
    "UpgradeProtocolPlan",
    "UpgradeProtocolResult",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "UpgradeProtocolOptions": "options",
        "UpgradeProtocolPlan": "options",
        "UpgradeProtocolResult": "options",
        "apply": "operation",
        "plan": "operation",
    },
)
