"""The operation `clean-log`, as every surface knows it."""

from __future__ import annotations

from delta_maintenance.operations.clean_log.facts import (
    done_amounts,
    ending,
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
    summary="cut off history that the table's retention no longer asks for",
    description="Delete what of the log is older than the newest checkpoint that the retention "
    "covers: commits,\ncheckpoints of every kind, checksums, compactions, sidecars that nothing "
    "refers to, and what\ndead writers left. That checkpoint is read before anything goes, and "
    "what is left is whole\nwhenever it stops. Prints what was deleted, with --dry-run what would "
    "be, and why.",
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
    report="every file that goes",
    decisive=("cut_off_instant", "oldest_version", "groups"),
    asks_for_approval=lambda plan: bool(plan.groups),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    ending_of_result=ending,
)
