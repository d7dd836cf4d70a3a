"""The record of the operation `vacuum`."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.vacuum.facts import (
    conclusion,
    done_amounts,
    plan_facts,
    planned_amounts,
    result_facts,
)
from delta_maintenance.operations.vacuum.options import VacuumOptions, VacuumPlan, VacuumResult

RECORD = OperationRecord(
    name="vacuum",
    title="Vacuum",
    summary="delete files that no retained version of the table needs",
    description=(
        "Delete data files, deletion vectors and change data files that no retained version of "
        "the\ntable refers to, if they are older than the retention themselves. The log is read "
        "again\nbefore every few thousand deletions. Prints the result; --dry-run prints the "
        "exact list of\nfiles and the reasons."
    ),
    options=VacuumOptions,
    plan=VacuumPlan,
    result=VacuumResult,
    code="delta_maintenance.operations.vacuum.operation",
    outcomes={
        "vacuumed": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, deletes=True),
    requires=("vacuum",),
    spark=SparkPart(engine="delta_maintenance.spark.vacuum:SparkVacuum.of_job", plans_by_job=True),
    policy=PolicyPart(
        key="vacuum",
        rule="delta_maintenance.operations.vacuum.policy:VacuumRule",
        description="Deletion of data files.",
        due="delta_maintenance.operations.vacuum.policy:due",
        before="delta_maintenance.operations.vacuum.policy:before",
    ),
    report="every file with its size, its time and the reason",
    # The reasons are not compared: a checkpoint turns an expired tombstone into an unreferenced
    # file.
    decisive=("delete_before", "files", "bytes", "paths_digest"),
    asks_for_approval=lambda plan: bool(plan.files or plan.directories),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
