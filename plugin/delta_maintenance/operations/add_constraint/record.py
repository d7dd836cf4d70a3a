"""The record of the operation `add-constraint`."""

from __future__ import annotations

from delta_maintenance.operations.add_constraint.options import (
    AddConstraintOptions,
    AddConstraintPlan,
    AddConstraintResult,
)
from delta_maintenance.operations.core.facts import Facts, size_text
from delta_maintenance.operations.core.operation import Effects, OperationRecord, SparkPart
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.table_change import facts as change_facts
from delta_maintenance.operations.table_change.facts import (
    DECISIVE,
    OUTCOMES,
    commits_of,
    planned_amounts,
    raises_protocol,
)


def plan_facts(plan: AddConstraintPlan) -> Facts:
    """Facts of a plan: the rows to read and the clients that lose access."""
    facts = change_facts.plan_facts(plan)
    if not plan.is_noop:
        facts |= {
            "files to read": plan.num_files,
            "bytes to read": size_text(plan.total_size),
            "deletion vectors": plan.num_deletion_vectors or None,
            "engine": plan.engine,
        }
    return facts


def result_facts(result: AddConstraintResult) -> Facts:
    """Facts of a result: the findings in the rows, and the commit."""
    found = result.checked
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "constraint": [f"{change.name}: {change.after}" for change in result.changes],
        "added features": result.added_features,
        "files": found.files or None,
        "rows": found.rows or None,
        "violations": found.violations or None,
        "files with violations": found.violating_files or None,
        "worst files": [
            f"{file.path}: {file.violations:,} of {file.rows:,} rows" for file in found.worst_files
        ],
        "problem": result.problem,
        "notes": result.notes,
    }


def conclusion(result: AddConstraintResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a result, with the violations or the reason of a conflict."""
    return Conclusion(outcome=outcome, problem=result.problem)


RECORD = OperationRecord(
    name="add-constraint",
    title="Add a CHECK constraint",
    summary="check that all rows satisfy a CHECK constraint, and add it",
    description=(
        "Add a CHECK constraint. A Spark job checks every row first. If a row violates the "
        "constraint, nothing is committed, and the files with the most violations are listed."
    ),
    prints=(
        "--dry-run shows what would be read, and the clients that would lose access. set- "
        "properties --unset delta.constraints.NAME removes a constraint."
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
