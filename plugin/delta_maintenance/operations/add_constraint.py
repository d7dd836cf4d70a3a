"""Adds a CHECK constraint after checking every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Result
from delta_maintenance.operations.core.facts import Facts, size_text
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.operation import Effects, OperationRecord, SparkPart
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Bounds, Record
from delta_maintenance.operations.table_change.documents import (
    DECISIVE,
    OUTCOMES,
    ChangeOptions,
    ChangePlan,
    PropertyChange,
    change_facts,
    commits_of,
    planned_amounts,
    raises_protocol,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.table_change.add_constraint import (
        FEATURE,
        ConstraintCheck,
        apply,
        plan,
    )


SHOWN_FILES = 5
"""The maximum number of files with violations in a Result."""

Status = Literal["committed", "already-done", "nothing-to-do", "violated", "conflict"]
"""`violated`: rows do not satisfy the constraint. `conflict`: other writers changed the table
faster than it could be checked, or contrary to the plan. Nothing was written in either case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddConstraintOptions(ChangeOptions):
    """The constraint to add."""

    name: Annotated[
        str, Flag("the name of the constraint, in any case", positional=True, example="positive")
    ]
    """Stored in lower case, as in Delta Spark."""
    expression: Annotated[
        str,
        Flag(
            "Spark SQL that must be true of every row, such as 'quantity > 0'; a row for "
            "which it is null violates it as well",
            positional=True,
            example="quantity > 0",
        ),
    ]
    engine: flags.Engine = "auto"
    auto_spark_bytes: Annotated[int, Bounds(0)] = 256 << 30
    """With `engine="auto"`, Spark is used from this number of bytes of data files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddConstraintPlan(ChangePlan):
    """The rows to check, the commit to make, and the clients that lose access."""

    options: AddConstraintOptions
    engine: Literal["local", "spark"] = "local"
    """The engine that checks the rows."""
    only_spark: str | None = None
    """Why only Spark can evaluate the expression, as a clause; None if this process can."""
    num_files: int
    """The number of files to read; only the columns in the expression are read."""
    total_size: int
    """The size of these files in bytes, with all columns."""
    num_deletion_vectors: int
    """The number of deletion vectors to read; deleted rows are not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolatingFile(Record):
    """A data file with rows that do not satisfy the constraint."""

    path: str
    """As in the log."""
    rows: int
    """The number of rows, without deleted ones."""
    violations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRows(Record):
    """The result of one check of rows."""

    files: int = 0
    rows: int = 0
    violations: int = 0
    """Rows for which the expression is false or null."""
    violating_files: int = 0
    worst_files: tuple[ViolatingFile, ...] = ()
    """Up to `SHOWN_FILES` files, those with the most violations first."""

    def __add__(self, other: CheckedRows) -> CheckedRows:
        worst = sorted(
            (*self.worst_files, *other.worst_files), key=lambda file: (-file.violations, file.path)
        )
        return CheckedRows(
            files=self.files + other.files,
            rows=self.rows + other.rows,
            violations=self.violations + other.violations,
            violating_files=self.violating_files + other.violating_files,
            worst_files=tuple(worst[:SHOWN_FILES]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AddConstraintResult(Result):
    """The findings and the commit."""

    status: Status
    attempts: int = 0
    """Versions tried."""
    checks: int = 0
    """The number of check rounds; more than one if other writers committed in the meantime."""
    checked: CheckedRows = CheckedRows()
    changes: tuple[PropertyChange, ...] = ()
    added_features: tuple[str, ...] = ()
    problem: str | None = None
    """The reason of a violation or a conflict, and the remedy."""


def plan_facts(plan: AddConstraintPlan) -> Facts:
    """Facts of a plan: the rows to read and the clients that lose access."""
    facts = change_facts(plan)
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
    checked_rows = result.checked
    return {
        "constraint": [f"{change.name}: {change.after}" for change in result.changes],
        "added features": result.added_features,
        "files": checked_rows.files or None,
        "rows": checked_rows.rows or None,
        "violations": checked_rows.violations or None,
        "files with violations": checked_rows.violating_files or None,
        "worst files": [
            f"{file.path}: {file.violations:,} of {file.rows:,} rows"
            for file in checked_rows.worst_files
        ],
        "problem": result.problem,
    }


def conclusion(result: AddConstraintResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a result, with the violations or the reason of a conflict."""
    return Conclusion(outcome=outcome, problem=result.problem)


RECORD = OperationRecord(
    name="add-constraint",
    title="Add a CHECK constraint",
    purpose="table",
    summary="check that all rows satisfy a constraint, and add it",
    description=(
        "Add a CHECK constraint. Every row is checked first: comparisons of columns with values "
        "in this process, other expressions by a Spark job. If a row violates the constraint, "
        "nothing is committed, and the files with the most violations are listed."
    ),
    prints=(
        "--dry-run shows what would be read, and the clients that would lose access. "
        "set-properties --unset delta.constraints.NAME removes a constraint."
    ),
    options=AddConstraintOptions,
    plan=AddConstraintPlan,
    result=AddConstraintResult,
    code="delta_maintenance.operations.table_change.add_constraint",
    outcomes={**OUTCOMES, "violated": Outcome.REFUSED},
    effects=Effects(commits=True, changes_table=True),
    requires=("change-metadata",),
    subjects=("name", "expression"),
    spark=SparkPart(engine="delta_maintenance.spark.constraint_check:SparkConstraintCheck"),
    only_spark=lambda plan: plan.only_spark,
    decisive=DECISIVE,
    asks_for_approval=raises_protocol,
    planned_amounts=planned_amounts,
    done_amounts=lambda result: commits_of(result.status),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)

__getattr__, __dir__ = lazy_names(
    __name__, f"{__package__}.table_change", add_constraint="ConstraintCheck FEATURE apply plan"
)
