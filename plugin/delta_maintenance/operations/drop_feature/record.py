"""The operation `drop-feature`, as every surface knows it."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import Effects, OperationRecord
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.drop_feature.facts import (
    done_amounts,
    ending,
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
    summary="take a table feature out, so that more clients may use the table",
    description="Switch a table feature off, take its traces out of the table, prove from the log "
    "that none is\nleft, and drop it from the protocol. Versions before stay and are kept from "
    "clients that would\nmisread them, or are cleaned away. Run again, it ends what an earlier run "
    "began. Prints what\nwas done, with --dry-run what would be, and why.",
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
    # Not its steps: a try that was interrupted leaves fewer of them.
    decisive=("ends", "protocol_before", "protocol_after", "oldest_version", "groups"),
    asks_for_approval=lambda plan: plan.ends != "nothing-to-do",
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    ending_of_result=ending,
)
