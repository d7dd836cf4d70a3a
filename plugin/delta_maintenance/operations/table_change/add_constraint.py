"""The `add-constraint` operation: adds a CHECK constraint if all rows satisfy it.

Implements "CHECK Constraints". The expression is SQL as Delta's writers evaluate it, so Spark
checks the rows, or this process if its answer is certainly the same (`ConstraintCheck`). This
module makes the commit, which depends on every live file. Files that other writers add in the
meantime are checked as well, and only those, because the result for a file never changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Protocol

from delta_maintenance.errors import InvalidRequestError, RefusedError, closest, locating
from delta_maintenance.operations.add_constraint import (
    AddConstraintOptions,
    AddConstraintPlan,
    AddConstraintResult,
    CheckedRows,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.table_change.models import Decision
from delta_maintenance.operations.table_change.operation import (
    ChangeVerb,
    decide_change,
    require_changeable,
)
from delta_maintenance.operations.table_change.row_check import (
    LocalConstraintCheck,
    require_evaluable,
    spark_only,
)
from delta_maintenance.protocol.changes.enable import ChangeRequest, TableChange
from delta_maintenance.protocol.changes.property_rules import CONSTRAINT_PREFIX
from delta_maintenance.protocol.commit.staged import StagedActions
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.schema.condition import columns_of, parse_condition
from delta_maintenance.protocol.schema.types import parse_schema
from delta_maintenance.table.commit.outcome import require_committable, require_no_external_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

FEATURE = "checkConstraints"

_MAX_CHECKS = 10
"""Maximum number of check rounds while other writers keep committing. From the second round on,
only new files are checked.
"""
_SHOWN_COLUMNS = 8
_FUNCTIONS = ("current_", "local", "session_", "user")
_RESERVED = "__char_varchar_string_length_check__"
"""The name that Delta Spark gives to the constraint for the lengths of strings."""


class ConstraintCheck(Protocol):
    """An engine that checks rows."""

    def __call__(
        self, snapshot: Snapshot, expression: str, *, added_after: int | None
    ) -> CheckedRows:
        """Evaluates the expression for every live row of the snapshot.

        With `added_after`, only for files that were added after that version, or in an unknown
        version. Raises `InvalidRequestError` if the expression is not that of a constraint: not
        boolean, with unknown columns, or over more than one row.
        """


def plan(
    snapshot: Snapshot, options: AddConstraintOptions, context: RunContext | None = None
) -> AddConstraintPlan:
    """Plans to add the constraint to the latest snapshot. Reads no rows and writes nothing.

    Raises `InvalidRequestError` for an empty name or expression, `RefusedError` for a name that is
    taken, and `UnsupportedFeatureError` or `RefusedError` for a table that must not be changed.
    """
    options = options.validated()
    options = replace(options, name=options.name.strip(), expression=options.expression.strip())
    planned = _VERB.plan(snapshot, options, context)
    if planned.is_noop:
        return planned
    schema = parse_schema(snapshot.metadata.schema_string or "")
    only_spark = spark_only(options.expression, schema)
    with locating(table=snapshot.table, version=snapshot.version):
        engine, why = _engine(options, planned.total_size, only_spark)
    return replace(planned, engine=engine, only_spark=only_spark, reason=f"{planned.reason}; {why}")


def apply(
    table: Table, plan: AddConstraintPlan, context: RunContext | None = None
) -> AddConstraintResult:
    """Checks the rows of the latest version, and commits if all of them satisfy the constraint.

    `engine` checks the rows; without an engine, this process does, unless the plan is for Spark.
    Raises the errors of the check, `RefusedError` if the table was replaced or must no longer be
    changed, and `CommitUnknownError` if the outcome of the commit is unknown.
    """
    context = context or RunContext()
    if not plan.is_noop:
        require_evaluable(plan.only_spark if context.engine is None else None)
        context.require_engine(plan)
    checks = _Checks(context.engine or LocalConstraintCheck(context.progress), plan.options)
    try:
        while True:
            result = _VERB.apply(table, plan, context, examine=checks.examine)
            if result.status != "conflict" or not result.attempts or checks.number == _MAX_CHECKS:
                return replace(result, checks=checks.number, checked=checks.found)
    except _ViolatedError as violated:
        return _violation(plan, violated.version, checks)


class _ViolatedError(Exception):
    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class _Checks:
    """All rounds of checks; each covers the files that earlier rounds have not covered."""

    def __init__(self, check: ConstraintCheck, options: AddConstraintOptions) -> None:
        self._check = check
        self._options = options
        self._last: Snapshot | None = None
        self.number = 0
        self.found = CheckedRows()

    def examine(self, snapshot: Snapshot) -> None:
        """Raises `_ViolatedError` if a row does not satisfy the constraint."""
        # An impossible request is refused before hours of reading.
        require_committable(snapshot, StagedActions(), drops=(), writers=self._options)
        require_no_external_log(snapshot.log.store)
        last_version = self._last
        if last_version is not None and last_version.metadata != snapshot.metadata:
            # With another schema, the same files can have other values.
            self.found, last_version = CheckedRows(), None
        self.number += 1
        self.found += self._check(
            snapshot,
            self._options.expression,
            added_after=None if last_version is None else last_version.version,
        )
        if self.found.violations:
            raise _ViolatedError(snapshot.version)
        self._last = snapshot


def _decide(snapshot: Snapshot, options: AddConstraintOptions, operation_id: str) -> Decision:
    name, expression = options.name.lower(), options.expression
    if not name or name == _RESERVED:
        raise InvalidRequestError(
            f"{options.name!r} is not a valid name for a constraint", remedy="choose another one"
        )
    if not expression:
        raise InvalidRequestError(
            "the expression is empty", remedy="give SQL that must be true of every row"
        )
    key = f"{CONSTRAINT_PREFIX}{name}"
    before = TableChange(protocol=snapshot.protocol, metadata=snapshot.metadata)
    present = {other.lower(): text for other, text in snapshot.metadata.configuration.items()}.get(
        key
    )
    if present is not None and present != expression:
        raise RefusedError(
            f"the constraint {name} already exists: {present}",
            table=snapshot.table,
            version=snapshot.version,
            remedy=f"choose another name, or remove it with set-properties --unset {key}",
        )
    if present is not None and supports(snapshot.protocol, FEATURE):
        after = before
    else:
        request = ChangeRequest(features=(FEATURE,), properties={key: expression})
        after = decide_change(snapshot, request, operation_id=operation_id)
    decision = Decision(
        operation="ADD CONSTRAINT",
        parameters={"name": options.name, "expr": expression},
        before=before,
        after=after,
    )
    if not decision.is_noop:
        require_changeable(snapshot, decision, writers=options)
        _require_columns(snapshot, expression)
    return decision


def _require_columns(snapshot: Snapshot, expression: str) -> None:
    """Raises `InvalidRequestError` for a column that the table lacks, as far as this is known
    without Spark: in comparisons of columns with values.
    """
    try:
        condition = parse_condition(expression)
    except InvalidRequestError:
        return
    columns = [field.name for field in parse_schema(snapshot.metadata.schema_string or "").fields]
    known = {column.lower() for column in columns}
    for first, *_ in columns_of(condition):
        # Functions such as current_date need no parentheses.
        if first.lower() in known or first.lower().startswith(_FUNCTIONS):
            continue
        meant = closest(first, columns)
        raise InvalidRequestError(
            f"the table has no column {first}",
            table=snapshot.table,
            version=snapshot.version,
            remedy=f"name {meant}, if that was meant"
            if meant is not None
            else f"name one of its columns: {', '.join(columns[:_SHOWN_COLUMNS])}",
        )


def _violation(plan: AddConstraintPlan, version: int, checks: _Checks) -> AddConstraintResult:
    violations = checks.found
    return AddConstraintResult(
        table=plan.table,
        version=version,
        status="violated",
        checks=checks.number,
        checked=violations,
        problem=f"{violations.violations:,} of {count_text(violations.rows, 'row')}, in "
        f"{violations.violating_files:,} of {count_text(violations.files, 'file')}, do not satisfy "
        f"{plan.options.expression}; correct or delete them, and run again",
        notes=plan.notes,
    )


def _reason(snapshot: Snapshot, decision: Decision) -> str:
    if decision.is_noop:
        return "the table already has this constraint"
    return f"the rows of {count_text(snapshot.counts.num_files, 'file')} have to be checked"


def _engine(
    options: AddConstraintOptions, size: int, only_spark: str | None
) -> tuple[Literal["local", "spark"], str]:
    """Returns the engine for files of this size in bytes, and the reason."""
    if options.engine == "local":
        require_evaluable(only_spark)
        return "local", "the local engine was asked for"
    if options.engine == "spark":
        return "spark", "Spark was asked for"
    if only_spark is not None:
        return "spark", only_spark
    if size >= options.auto_spark_bytes:
        return "spark", "these are more bytes than one process should read"
    return "local", "these are few enough bytes for one process"


def _planned(snapshot: Snapshot, decision: Decision) -> dict[str, Any]:
    if decision.is_noop:
        return {"num_files": 0, "total_size": 0, "num_deletion_vectors": 0}
    counts = snapshot.counts
    return {
        "num_files": counts.num_files,
        "total_size": counts.total_size,
        "num_deletion_vectors": counts.num_deletion_vectors,
    }


_VERB = ChangeVerb(
    options_type=AddConstraintOptions,
    plan_type=AddConstraintPlan,
    result_type=AddConstraintResult,
    decide=_decide,
    reason=_reason,
    planned=_planned,
    done=lambda plan: {"changes": plan.changes},
)
