"""The record of the operation `optimize`."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.optimize.options import (
    OptimizeOptions,
    OptimizePlan,
    OptimizeResult,
)
from delta_maintenance.operations.rewriting.facts import (
    done_amounts,
    ending,
    plan_facts,
    planned_amounts,
    result_facts,
)

RECORD = OperationRecord(
    name="optimize",
    title="Optimize: merge small data files",
    summary="merge small data files, and rewrite files with many deleted rows",
    description="Merge small data files of each partition and rewrite files with many deleted "
    "rows, without\nchanging any row: new files are read back and compared before each commit. "
    "Other writers may\ncommit at the same time. The old files stay until a vacuum. Prints what "
    "was done, with --dry-run\nwhat would be, and why.",
    options=OptimizeOptions,
    plan=OptimizePlan,
    result=OptimizeResult,
    code="delta_maintenance.operations.optimize.operation",
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
        key="optimize",
        rule="delta_maintenance.operations.optimize.policy:OptimizeRule",
        description="Merging of small data files.",
        due="delta_maintenance.operations.optimize.policy:due",
    ),
    decisive=("is_noop", "target_bytes"),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    ending_of_result=ending,
    wrote=lambda result: result.num_commits > 0,
)
