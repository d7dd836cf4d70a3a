"""Adds table features to the protocol of a table."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.upgrade_protocol.options import (
    UpgradeProtocolOptions,
    UpgradeProtocolPlan,
    UpgradeProtocolResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.upgrade_protocol.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
