"""Adds a CHECK constraint to a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import CommitConflictError, DeltaMaintenanceError, RefusedError
from delta_maintenance_airflow.operators.base import Prepared
from delta_maintenance_airflow.operators.spark_base import DeltaJobOperator

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.add_constraint import (
        AddConstraintOptions,
        AddConstraintResult,
    )
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaAddConstraintOperator(DeltaJobOperator):
    """Adds a CHECK constraint, after a Spark job found that every row satisfies it.

    The worker plans, and submits the job where the table lacks the constraint. Rows that others
    append meanwhile are looked at too. A row of which the expression is false or null violates it.

    `status` is `committed`, `already-done` or `nothing-to-do`. Where rows violate the constraint,
    nothing is committed and the task fails at once, with the status `violated`, their number and
    the files with the most of them in XCom; a `conflict` fails it too, and may be retried. Takes
    the parameters of `DeltaJobOperator`, and:

    :param name: the name of the constraint, regardless of case. (templated)
    :param expression: Spark SQL that must be true of every row, such as `quantity > 0`. (templated)

    `options` are fields of `AddConstraintOptions`: `other_writers`, `operation_id`,
    `operation_since`.
    """

    operation = "add-constraint"
    subjects = ("name", "expression")
    names_commits = True
    template_fields: Sequence[str] = (*DeltaJobOperator.template_fields, "name", "expression")

    def __init__(self, *, name: str, expression: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.expression = expression

    def read_options(self, given: Mapping[str, Any]) -> AddConstraintOptions:
        from delta_maintenance.operations import add_constraint

        return add_constraint.AddConstraintOptions.from_json(given)

    def prepare(
        self, table: Table, options: AddConstraintOptions, progress: LoggedProgress
    ) -> Prepared:
        from delta_maintenance.operations import add_constraint

        plan = add_constraint.plan(table.snapshot(), options, now=clock.now())

        read = add_constraint.AddConstraintResult.from_json

        def apply() -> AddConstraintResult:
            if plan.is_noop:
                return add_constraint.apply(table, plan)
            return read(self.submit(options.to_json(), settles=settles))

        def settles(result: Mapping[str, Any]) -> bool:
            return self.failure(read(result)) is None

        return Prepared(plan, apply)

    def summary(self, result: AddConstraintResult) -> str:
        return (
            f"{result.status} as version {result.version}, {result.checked.rows} rows of "
            f"{result.checked.files} files looked at"
        )

    def failure(self, document: Any) -> DeltaMaintenanceError | None:
        match getattr(document, "status", None):
            case "violated":
                return RefusedError(document.problem)
            case "conflict":
                return CommitConflictError(document.problem)
        return None
