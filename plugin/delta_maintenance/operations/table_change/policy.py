"""What a policy says of a table's protocol and properties, which several operations carry out."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.evaluation import not_due
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.table_change.options import ChangeOptions, ChangePlan

KEY = "protocol"


class ProtocolRule(Rule):
    """What the table is to support, and how it is to be configured."""

    features: tuple[str, ...] = ()
    """Table features by the names of the protocol; what they require comes along."""
    properties: Mapping[str, str] = Field(default_factory=dict)
    """Table properties and their values."""


def assessed(name: str, plan: ChangePlan, options: ChangeOptions) -> AssessedOperation:
    """Due unless the table is so already."""
    if plan.is_noop:
        return not_due(name, plan.reason)
    return AssessedOperation(
        operation=name, status="due", reason=plan.reason, options=options, requests=3
    )
