"""Facts about changed properties, for people."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.set_properties.options import (
    SetPropertiesPlan,
    SetPropertiesResult,
)
from delta_maintenance.operations.table_change import facts as change_facts


def plan_facts(plan: SetPropertiesPlan) -> Facts:
    """The properties, the protocol that they need, and the clients that lose access."""
    mapped = "every column gets an ID and a physical name" if plan.maps_columns else None
    return change_facts.plan_facts(plan) | {"columns": mapped}


def result_facts(result: SetPropertiesResult) -> Facts:
    """The present values of the properties."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "properties": {
            change.name: change.after if change.after is not None else "(removed)"
            for change in result.changes
        },
        "added features": result.added_features,
        "problem": result.problem,
        "notes": result.notes,
    }
