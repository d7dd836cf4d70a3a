"""The record of the operation `drop-feature`."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import Effects, OperationRecord
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.drop_feature.facts import (
    conclusion,
    done_amounts,
    plan_facts,
    planned_amounts,
    result_facts,
)
from delta_maintenance.operations.drop_feature.options import (
    DropFeatureOptions,
    DropFeaturePlan,
    DropFeatureResult,
)

RECORD = OperationRecord(
    name="drop-feature",
    title="Drop a table feature",
    summary="remove a table feature, so that more clients can use the table",
    description=(
        "Disable a table feature, remove its traces from the table, verify in the log that none "
        "is\nleft, and drop the feature from the protocol. Older versions are kept and protected "
        "from\nclients that would misread them, or are deleted. Another run completes an "
        "interrupted one.\nPrints the result; --dry-run prints the plan and its reasons."
    ),
    options=DropFeatureOptions,
    plan=DropFeaturePlan,
    result=DropFeatureResult,
    code="delta_maintenance.operations.drop_feature.operation",
    outcomes={
        "dropped": Outcome.DONE,
        "waiting": Outcome.WAITING,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, deletes=True, changes_table=True),
    requires=("change-metadata",),
    subjects=("feature",),
    # Without the steps, because an interrupted run leaves fewer steps.
    decisive=("ends", "protocol_before", "protocol_after", "oldest_version", "groups"),
    asks_for_approval=lambda plan: plan.ends != "nothing-to-do",
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
