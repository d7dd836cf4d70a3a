"""The policy rule for table properties."""

from __future__ import annotations

from delta_maintenance.operations import set_properties
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.evaluation import EvaluationContext
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.table_change.policy import KEY, ProtocolRule, assessed


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due while a property has another value, or row tracking should be off but is on."""
    # Imported here, because reading a policy must not load pyarrow.
    from delta_maintenance.protocol.row_tracking.row_ids import ENABLED_PROPERTY

    rule = context.rule(KEY, ProtocolRule)
    properties = dict(rule.properties) if rule is not None else {}
    if context.rule("row_tracking", bool) is False and context.health.row_tracking == "enabled":
        properties[ENABLED_PROPERTY] = "false"
    if not properties:
        return None
    options = SetPropertiesOptions(properties=properties, other_writers=context.rules.other_writers)
    plan = set_properties.plan(context.snapshot, options, context=RunContext.at(context.now))
    return assessed("set-properties", plan, options)
