"""The operation `touch`, as every surface knows it."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Outcome
from delta_touch.options import TouchOptions, TouchPlan, TouchResult

RECORD = OperationRecord(
    name="touch",
    title="Add an empty version",
    summary="add an empty version to an idle table",
    description="Add a version without changes to an idle table.",
    prints="Prints the version, with --dry-run whether the table is idle.",
    options=TouchOptions,
    plan=TouchPlan,
    result=TouchResult,
    code="delta_touch.operation",
    outcomes={
        "touched": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
        "conflict": Outcome.CONFLICT,
    },
    effects=Effects(commits=True),
    requires=("commit",),
    subjects=("note",),
    spark=SparkPart(engine="delta_touch.engine:SparkTouch.of_job"),
    policy=PolicyPart(
        key="touch",
        rule="delta_touch.policy:TouchRule",
        description="Empty versions of idle tables.",
        due="delta_touch.policy:due",
    ),
    decisive=("idle",),
    asks_for_approval=lambda plan: plan.idle,
    planned_amounts=lambda plan: Amounts(commits=int(plan.idle)),
    done_amounts=lambda result: Amounts(commits=int(result.status == "touched")),
)
