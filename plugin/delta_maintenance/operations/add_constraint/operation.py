"""The `add-constraint` operation: a CHECK constraint, after all rows were found to satisfy it.

Implements "CHECK Constraints". The expression is SQL of Delta's writers, so an engine that speaks
it looks at the rows (`ConstraintCheck`); the commit stays ours, and depends on every live file.
What others commit in between is looked at too, and only that: what holds for a file holds for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Protocol

from delta_maintenance import clock
from delta_maintenance.errors import (
    InvalidRequestError,
    RefusedError,
)
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.table_change.models import (
    ChangeOptions,
    ChangePlan,
    Decision,
    Ending,
    PropertyChange,
)
from delta_maintenance.operations.table_change.operation import (
    carry_out,
    decide_change,
    done_before,
    require_changeable,
)
from delta_maintenance.protocol.changes.enable import ChangeRequest, TableChange
from delta_maintenance.protocol.changes.property_rules import CONSTRAINT_PREFIX
from delta_maintenance.protocol.commit.staged import StagedActions
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.table.commit.preconditions import (
    OtherWriters,
    require_committable,
    require_no_external_log,
)
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

FEATURE = "checkConstraints"
SHOWN_FILES = 5
"""Files with violations that a Result names at most."""

_MAX_LOOKS = 10
"""At the data, while others keep committing; from the second on only at what is new."""
_RESERVED = "__char_varchar_string_length_check__"
"""The name that Delta Spark gives to the lengths of texts."""

Status = Literal["committed", "already-done", "nothing-to-do", "violated", "conflict"]
"""`violated`: rows do not satisfy the constraint. `conflict`: others changed the table faster than
it could be looked at, or in another way than planned. Nothing was written in either case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddConstraintOptions(ChangeOptions):
    """Which constraint."""

    name: str
    """Regardless of case; stored in small letters, as Delta Spark does."""
    expression: str
    """SQL that must be true of every row; false violates it, and so does null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddConstraintPlan(ChangePlan):
    """What `apply` will look at and commit, and for whom."""

    options: AddConstraintOptions
    engine: Literal["spark"] = "spark"
    """Who looks at the rows: nobody else speaks the language of the expression."""
    num_files: int
    """To be read, of which only the columns that the expression names."""
    total_size: int
    """Bytes of these files, all columns included."""
    num_deletion_vectors: int
    """To be read as well; deleted rows violate nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolatingFile(Record):
    """A data file with rows that do not satisfy the constraint."""

    path: str
    """As in the log."""
    rows: int
    """That are not deleted."""
    violations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRows(Record):
    """What a look at the data found."""

    files: int = 0
    rows: int = 0
    violations: int = 0
    """Rows of which the expression is false or null."""
    violating_files: int = 0
    worst_files: tuple[ViolatingFile, ...] = ()
    """Up to `SHOWN_FILES` of them, those with the most violations first."""

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


class ConstraintCheck(Protocol):
    """An engine that looks at rows."""

    def __call__(
        self, snapshot: Snapshot, expression: str, *, added_after: int | None
    ) -> CheckedRows:
        """Evaluates the expression for every live row of the snapshot.

        With `added_after` only for files that were added by commits after that version, or by
        nobody knows which. `InvalidRequestError` for an expression that is none of a constraint:
        not boolean, about columns that are not there, or about more than one row.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class AddConstraintResult(Record):
    """What was found and committed."""

    table: str
    version: int
    """Of the commit; where none was made, the newest one that was looked at."""
    status: Status
    attempts: int = 0
    """Versions tried."""
    looks: int = 0
    """At the data; more than one where others committed meanwhile."""
    checked: CheckedRows = CheckedRows()
    changes: tuple[PropertyChange, ...] = ()
    added_features: tuple[str, ...] = ()
    problem: str | None = None
    """Why there is a violation or a conflict, and what to do."""
    notes: tuple[str, ...] = ()


def plan(
    snapshot: Snapshot,
    options: AddConstraintOptions,
    *,
    now: datetime,
    new_id: clock.NewId = clock.new_id,
) -> AddConstraintPlan:
    """What adding the constraint to the latest snapshot takes. Looks at no row and writes nothing.

    `InvalidRequestError` for an empty name or expression; `RefusedError` for a name that is taken;
    `UnsupportedFeatureError` and `RefusedError` for a table that must not be changed.
    """
    options = options.validated()
    options = replace(options, name=options.name.strip(), expression=options.expression.strip())
    operation_id = options.operation_id or new_id()
    done = done_before(snapshot, operation_id=options.operation_id, since=options.operation_since)
    decision = (
        _decide(snapshot, options, operation_id) if done is None else Decision.nothing(snapshot)
    )
    noop = decision.is_noop
    counts = snapshot.counts
    return AddConstraintPlan.of(
        snapshot,
        options,
        decision,
        operation_id=operation_id,
        now=now,
        reason=done or "the table has this constraint already"
        if noop
        else f"the rows of {counts.num_files} files have to be looked at",
        num_files=0 if noop else counts.num_files,
        total_size=0 if noop else counts.total_size,
        num_deletion_vectors=0 if noop else counts.num_deletion_vectors,
    )


def apply(
    table: Table,
    plan: AddConstraintPlan,
    *,
    check: ConstraintCheck | None = None,
    now: Callable[[], datetime] = clock.now,
    new_id: clock.NewId = clock.new_id,
    sleep: Callable[[float], None] = time.sleep,
) -> AddConstraintResult:
    """Looks at the rows of the table as it is now, and commits where all of them satisfy.

    `check` is the engine; without one only a plan that does nothing can be carried out. Errors:
    those of the check; `RefusedError` where the table is another one, or must not be changed any
    more; `CommitUnknownError` where nobody can tell whether the commit was made.
    """
    if plan.is_noop:
        return AddConstraintResult(
            table=plan.table, version=plan.version, status="nothing-to-do", notes=(plan.reason,)
        )
    if check is None:
        raise InvalidRequestError(
            "rows are looked at by Spark", remedy="run it by delta_maintenance.spark"
        )
    looks = _Looks(check, plan.options.expression)

    def decide(snapshot: Snapshot) -> Decision:
        # Nobody is to wait for hours for what can be refused at once.
        _require_committable(table, snapshot, plan.options.other_writers)
        return _decide(snapshot, plan.options, plan.operation_id)

    try:
        while True:
            ending = carry_out(
                table, plan, decide, examine=looks.examine, now=now, new_id=new_id, sleep=sleep
            )
            if ending.status != "conflict" or not ending.attempts or looks.number == _MAX_LOOKS:
                return _result(plan, ending, looks)
    except _ViolatedError as violated:
        return _violated(plan, violated.version, looks)


class _ViolatedError(Exception):
    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class _Looks:
    """Every look at the data, each at what the ones before have not seen."""

    def __init__(self, check: ConstraintCheck, expression: str) -> None:
        self._check = check
        self._expression = expression
        self._last: Snapshot | None = None
        self.number = 0
        self.found = CheckedRows()

    def examine(self, snapshot: Snapshot) -> None:
        """Raises `_ViolatedError` where a row does not satisfy the constraint."""
        last = self._last
        if last is not None and last.metadata != snapshot.metadata:
            # Another schema may give the same files other values.
            self.found, last = CheckedRows(), None
        self.number += 1
        self.found += self._check(
            snapshot, self._expression, added_after=None if last is None else last.version
        )
        if self.found.violations:
            raise _ViolatedError(snapshot.version)
        self._last = snapshot


def _decide(snapshot: Snapshot, options: AddConstraintOptions, operation_id: str) -> Decision:
    name, expression = options.name.lower(), options.expression
    if not name or name == _RESERVED:
        raise InvalidRequestError(
            f"{options.name!r} is no name of a constraint", remedy="choose another one"
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
            f"there is a constraint {name} already: {present}",
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
        require_changeable(snapshot, decision, other_writers=options.other_writers)
    return decision


def _require_committable(
    table: Table, snapshot: Snapshot, other_writers: OtherWriters | None
) -> None:
    require_committable(snapshot, StagedActions(), drops=(), other_writers=other_writers)
    require_no_external_log(table.store)


def _result(plan: AddConstraintPlan, ending: Ending, looks: _Looks) -> AddConstraintResult:
    done = ending.status == "committed"
    return AddConstraintResult(
        table=plan.table,
        version=ending.version,
        status=ending.status,
        attempts=ending.attempts,
        looks=looks.number,
        checked=looks.found,
        changes=plan.changes if done else (),
        added_features=plan.added_features if done else (),
        problem=ending.problem,
        notes=ending.notes,
    )


def _violated(plan: AddConstraintPlan, version: int, looks: _Looks) -> AddConstraintResult:
    found = looks.found
    return AddConstraintResult(
        table=plan.table,
        version=version,
        status="violated",
        looks=looks.number,
        checked=found,
        problem=f"{found.violations} of {found.rows} rows, in {found.violating_files} of "
        f"{found.files} files, do not satisfy {plan.options.expression}; correct or delete them, "
        "and run again",
        notes=plan.notes,
    )
