"""Policy rules for the protocol and the properties of a table, shared by several operations."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.evaluation import not_due
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.table_change.options import ChangeOptions, ChangePlan

KEY = "protocol"


class ProtocolRule(Rule):
    """The required features and properties of a table."""

    features: tuple[str, ...] = ()
    """Table features, named as in the protocol; required features are added as well."""
    properties: Mapping[str, str] = Field(default_factory=dict)
    """Table properties and their values."""


def assessed(name: str, plan: ChangePlan, options: ChangeOptions) -> AssessedOperation:
    """Due unless the table already has the requested state."""
    if plan.is_noop:
        return not_due(name, plan.reason)
    return AssessedOperation(
        operation=name, status="due", reason=plan.reason, options=options, requests=3
    )
