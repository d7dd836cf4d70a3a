"""The policy rule for table features."""

from __future__ import annotations

from delta_maintenance.operations import upgrade_protocol
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.evaluation import EvaluationContext
from delta_maintenance.operations.table_change.policy import KEY, ProtocolRule, assessed
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolOptions


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due while the table lacks a feature."""
    rule = context.rule(KEY, ProtocolRule)
    if rule is None or not rule.features:
        return None
    options = UpgradeProtocolOptions(
        features=rule.features, other_writers=context.rules.other_writers
    )
    plan = upgrade_protocol.plan(context.snapshot, options, context=RunContext.at(context.now))
    return assessed("upgrade-protocol", plan, options)
