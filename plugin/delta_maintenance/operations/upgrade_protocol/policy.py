"""The policy rule for table features."""

from __future__ import annotations

from delta_maintenance.operations import upgrade_protocol
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.evaluation import Look
from delta_maintenance.operations.table_change.policy import KEY, ProtocolRule, assessed
from delta_maintenance.operations.upgrade_protocol.options import UpgradeProtocolOptions


def due(look: Look) -> AssessedOperation | None:
    """Due while the table lacks a feature."""
    rule = look.rule(KEY, ProtocolRule)
    if rule is None or not rule.features:
        return None
    options = UpgradeProtocolOptions(features=rule.features, other_writers=look.rules.other_writers)
    plan = upgrade_protocol.plan(look.snapshot, options, now=look.now)
    return assessed("upgrade-protocol", plan, options)
