"""Facts about a protocol upgrade, for people."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.table_change import facts as change_facts
from delta_maintenance.operations.table_change.facts import protocol_text
from delta_maintenance.operations.upgrade_protocol.options import (
    UpgradeProtocolPlan,
    UpgradeProtocolResult,
)


def plan_facts(plan: UpgradeProtocolPlan) -> Facts:
    """The protocol before and after, and the clients that lose access."""
    return change_facts.plan_facts(plan) | {"converted domains": plan.converted_domains}


def result_facts(result: UpgradeProtocolResult) -> Facts:
    """The present protocol."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "protocol": None if result.protocol is None else protocol_text(result.protocol),
        "added features": result.added_features,
        "converted domains": result.converted_domains,
        "problem": result.problem,
        "notes": result.notes,
    }
