"""The record of the operation `upgrade-protocol`."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.table_change.facts import (
    DECISIVE,
    OUTCOMES,
    commits_of,
    conclusion,
    planned_amounts,
    raises_protocol,
)
from delta_maintenance.operations.upgrade_protocol.facts import plan_facts, result_facts
from delta_maintenance.operations.upgrade_protocol.options import (
    UpgradeProtocolOptions,
    UpgradeProtocolPlan,
    UpgradeProtocolResult,
)

RECORD = OperationRecord(
    name="upgrade-protocol",
    title="Upgrade the protocol",
    summary="add table features to the protocol of a table",
    description=(
        "Add table features and the features that they require to the protocol of a table, in "
        "one\ncommit. All supported features stay supported, including implied ones, and no "
        "property\nchanges: to activate a feature, set its property with set-properties. Prints "
        "the result;\n--dry-run prints the plan and the clients that would lose access."
    ),
    options=UpgradeProtocolOptions,
    plan=UpgradeProtocolPlan,
    result=UpgradeProtocolResult,
    code="delta_maintenance.operations.upgrade_protocol.operation",
    outcomes=OUTCOMES,
    effects=Effects(commits=True, changes_table=True),
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
