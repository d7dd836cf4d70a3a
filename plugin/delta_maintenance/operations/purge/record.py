"""The record of the operation `purge`."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.purge.options import (
    PurgeOptions,
    PurgePlan,
    PurgeResult,
)
from delta_maintenance.operations.rewriting.facts import (
    done_amounts,
    ending,
    plan_facts,
    planned_amounts,
    result_facts,
)

RECORD = OperationRecord(
    name="purge",
    title="Purge deleted rows from data files",
    summary="rewrite data files without deleted rows and dropped columns",
    description="Rewrite each data file that holds deleted rows, or values of dropped columns, "
    "without them. No\nlive row changes: new files are read back and compared before each commit. "
    "Older versions keep\nthe old files until a vacuum. Prints what was done, with --dry-run what "
    "would be, and why.",
    options=PurgeOptions,
    plan=PurgePlan,
    result=PurgeResult,
    code="delta_maintenance.operations.purge.operation",
    outcomes={
        "rewritten": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "conflict": Outcome.CONFLICT,
        "failed": Outcome.FAILED,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True),
    requires=("rewrite-data",),
    policy=PolicyPart(
        key="purge",
        rule="delta_maintenance.operations.purge.policy:PurgeRule",
        description="Removal of deleted rows from data files.",
        due="delta_maintenance.operations.purge.policy:due",
    ),
    decisive=("is_noop", "target_bytes"),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    ending_of_result=ending,
    wrote=lambda result: result.num_commits > 0,
)
