"""The record of the operation `clean-log`."""

from __future__ import annotations

from delta_maintenance.operations.clean_log.facts import (
    conclusion,
    done_amounts,
    plan_facts,
    planned_amounts,
    result_facts,
)
from delta_maintenance.operations.clean_log.options import (
    CleanLogOptions,
    CleanLogPlan,
    CleanLogResult,
)
from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Outcome

RECORD = OperationRecord(
    name="clean-log",
    title="Clean up the log",
    summary="delete history that the table's retention no longer requires",
    description=(
        "Delete the files of the log that are older than the newest checkpoint at or before the "
        "log\nretention boundary: commits, checkpoints of every kind, checksums, compactions, "
        "unreferenced\nsidecars, and leftovers of failed writers. That checkpoint is read before "
        "anything is\ndeleted, and the remaining log is complete whenever the command stops. "
        "Prints the result;\n--dry-run prints the plan and its reason."
    ),
    options=CleanLogOptions,
    plan=CleanLogPlan,
    result=CleanLogResult,
    code="delta_maintenance.operations.clean_log.operation",
    outcomes={
        "cleaned": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(deletes=True),
    requires=("clean-log",),
    policy=PolicyPart(
        key="clean_log",
        rule="delta_maintenance.operations.clean_log.policy:CleanLogRule",
        description="Deletion of history.",
        due="delta_maintenance.operations.clean_log.policy:due",
    ),
    report="every file to delete",
    decisive=("cut_off_instant", "oldest_version", "groups"),
    asks_for_approval=lambda plan: bool(plan.groups),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
