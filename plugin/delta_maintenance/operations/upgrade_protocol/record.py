"""The record of the operation `upgrade-protocol`."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.table_change import facts as change_facts
from delta_maintenance.operations.table_change.facts import (
    DECISIVE,
    OUTCOMES,
    commits_of,
    conclusion,
    planned_amounts,
    protocol_text,
    raises_protocol,
)
from delta_maintenance.operations.upgrade_protocol.options import (
    UpgradeProtocolOptions,
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


RECORD = OperationRecord(
    name="upgrade-protocol",
    title="Upgrade the protocol",
    summary="add table features to the protocol of a table",
    description=(
        "Add table features and the features that they require to the protocol of a table, in "
        "one commit. All supported features stay supported, including implied ones, and no "
        "property changes: to activate a feature, set its property with set-properties."
    ),
    prints="Prints the result; --dry-run prints the plan and the clients that would lose access.",
    options=UpgradeProtocolOptions,
    plan=UpgradeProtocolPlan,
    result=UpgradeProtocolResult,
    code="delta_maintenance.operations.upgrade_protocol.operation",
    outcomes=OUTCOMES,
    effects=Effects(commits=True, changes_table=True),
    runs_on_corrupt=True,
    requires=("change-metadata",),
    subjects=("features",),
    policy=PolicyPart(
        key="protocol",
        rule="delta_maintenance.operations.table_change.policy:ProtocolRule",
        description="Features that the table must support, and its properties.",
        due="delta_maintenance.operations.upgrade_protocol.policy:due",
    ),
    decisive=DECISIVE,
    asks_for_approval=raises_protocol,
    planned_amounts=planned_amounts,
    done_amounts=lambda result: commits_of(result.status),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
