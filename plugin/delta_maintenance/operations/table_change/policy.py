"""The rule of a policy for the protocol and the properties of a table."""

from __future__ import annotations

from delta_maintenance.operations import set_properties, upgrade_protocol
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.table_change.documents import ChangeOptions, ChangePlan
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolOptions

KEY = "protocol"


class ProtocolRule(Rule):
    """The required features and properties of a table."""


def assessed(name: str, plan: ChangePlan, options: ChangeOptions) -> AssessedOperation:
    """Due unless the table already has the requested state."""
    if plan.is_noop:
        return not_due(name, plan.reason)
    return AssessedOperation(
        operation=name, status="due", reason=plan.reason, options=options, requests=3
    )


def due_set_properties(context: EvaluationContext) -> AssessedOperation | None:
    """Due while a property has another value, or row tracking should be off but is on."""
    # Imported here, because reading a policy must not load pyarrow.
    from delta_maintenance.protocol.row_tracking.row_ids import ENABLED_PROPERTY

    rule = context.rule(KEY, ProtocolRule)
    properties = dict(context.options(SetPropertiesOptions, rule or ()).properties)
    if context.rule("row_tracking", bool) is False and context.health.row_tracking == "enabled":
        properties[ENABLED_PROPERTY] = "false"
    if not properties:
        return None
    options = context.options(SetPropertiesOptions, properties=properties)
    plan = set_properties.plan(context.snapshot, options, context=RunContext.at(context.now))
    return assessed("set-properties", plan, options)


def due_upgrade_protocol(context: EvaluationContext) -> AssessedOperation | None:
    """Due while the table lacks a feature."""
    rule = context.rule(KEY, ProtocolRule)
    options = context.options(UpgradeProtocolOptions, rule or ())
    if not options.features:
        return None
    plan = upgrade_protocol.plan(context.snapshot, options, context=RunContext.at(context.now))
    return assessed("upgrade-protocol", plan, options)
