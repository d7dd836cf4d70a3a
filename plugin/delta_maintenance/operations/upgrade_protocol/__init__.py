"""Adds table features to the protocol of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.upgrade_protocol.operation import (
        UpgradeProtocolOptions,
        UpgradeProtocolPlan,
        UpgradeProtocolResult,
        apply,
        plan,
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
        "UpgradeProtocolOptions": "operation",
        "UpgradeProtocolPlan": "operation",
        "UpgradeProtocolResult": "operation",
        "apply": "operation",
        "plan": "operation",
    },
)
