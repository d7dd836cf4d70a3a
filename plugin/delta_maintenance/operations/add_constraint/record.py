"""The record of the operation `add-constraint`."""

from __future__ import annotations

from delta_maintenance.operations.add_constraint.facts import conclusion, plan_facts, result_facts
from delta_maintenance.operations.add_constraint.options import (
    AddConstraintOptions,
    AddConstraintPlan,
    AddConstraintResult,
)
from delta_maintenance.operations.core.operation import Effects, OperationRecord, SparkPart
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.table_change.facts import (
    DECISIVE,
    OUTCOMES,
    commits_of,
    planned_amounts,
    raises_protocol,
)

RECORD = OperationRecord(
    name="add-constraint",
    title="Add a CHECK constraint",
    summary="check that all rows satisfy a CHECK constraint, and add it",
    description=(
        "Add a CHECK constraint. A Spark job checks every row first. If a row violates the\n"
        "constraint, nothing is committed, and the files with the most violations are listed.\n"
        "--dry-run shows what would be read, and the clients that would lose access.\n"
        "set-properties --unset delta.constraints.NAME removes a constraint."
    ),
    options=AddConstraintOptions,
    plan=AddConstraintPlan,
    result=AddConstraintResult,
    code="delta_maintenance.operations.add_constraint.operation",
    outcomes={**OUTCOMES, "violated": Outcome.REFUSED},
    effects=Effects(commits=True, changes_table=True),
    requires=("change-metadata",),
    subjects=("name", "expression"),
    spark=SparkPart(engine="delta_maintenance.spark.constraint_check:SparkConstraintCheck.of_job"),
    works_in_process=False,
    decisive=DECISIVE,
    asks_for_approval=raises_protocol,
    planned_amounts=planned_amounts,
    done_amounts=lambda result: commits_of(result.status),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
