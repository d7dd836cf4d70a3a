"""Records about tables and their policies: assessments and runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from delta_maintenance.errors import CorruptTableError, InvalidRequestError
from delta_maintenance.operations.core.assessment import AssessedOperation, LastRun
from delta_maintenance.operations.core.freed import Freed
from delta_maintenance.operations.core.operation import Amounts
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import known
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.operations.holds.models import HeldBack
from delta_maintenance.policies.measuring import Cost, ExpectedCost, TableState

__all__ = ["AssessedOperation", "LastRun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment(Record):
    """One table compared with its policy at an instant; or a pattern that could not be listed."""

    subject: Literal["table", "pattern"] = "table"
    """`pattern`: `name` and `uri` are the pattern, and `status` is `failed`."""
    name: str
    uri: str
    owner: str | None = None
    """The owner in the policy, or else in the catalog of the table."""
    tags: tuple[str, ...] = ()
    """Likewise."""
    assessed_at: Instant
    status: Literal["due", "nothing-due", "deferred", "blocked", "failed"]
    """`deferred`, `blocked`: all due operations are. `failed`: the table could not be read."""
    problem: str | None = None
    """The problem of a failed assessment: one line, with the remedy."""
    exit_status: int = 0
    """The exit status of the command line for a failed assessment."""
    retryable: bool = False
    """Whether a failed assessment may succeed later."""
    operations: tuple[AssessedOperation, ...] = ()
    """The operations in the order in which they run."""
    next_due_at: Instant | None = None
    """The latest time of the next assessment, as far as it depends on time alone."""
    held: tuple[HeldBack, ...] = ()
    """Who holds files of the table: kept versions, and what the last vacuum and the last clean-up
    of the log kept for holders, most bytes first."""
    health: TableHealth | None = None
    notes: tuple[str, ...] = ()

    @property
    def due(self) -> tuple[AssessedOperation, ...]:
        """The operations to run, in order."""
        return tuple(operation for operation in self.operations if operation.status == "due")


def status_of(
    operations: Iterable[AssessedOperation],
) -> Literal["due", "nothing-due", "deferred", "blocked"]:
    """Returns the status of an assessment with these operations."""
    statuses = {operation.status for operation in operations}
    ranked: tuple[Literal["due", "deferred", "blocked"], ...] = ("due", "deferred", "blocked")
    return next((status for status in ranked if status in statuses), "nothing-due")


def next_due_at(operations: Iterable[AssessedOperation]) -> datetime | None:
    """Returns when one of these operations is due, or may run, at the earliest."""
    times = (operation.due_at for operation in operations if operation.due_at is not None)
    return min(times, default=None)


def with_due_since(
    assessment: Assessment, previous: Assessment | None, *, done: Collection[str] = ()
) -> Assessment:
    """Returns the assessment with the times since which its operations are due.

    `done` names the operations that ran between the two assessments.
    """
    now = assessment.assessed_at
    since = {
        operation.operation: operation.due_since
        for operation in (previous.operations if previous is not None else ())
        if operation.operation not in done
    }
    operations = (
        operation
        if operation.status == "not-due"
        else replace(
            operation, due_since=since.get(operation.operation) or operation.due_since or now
        )
        for operation in assessment.operations
    )
    return replace(assessment, operations=tuple(operations))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOutcome(Record):
    """The outcome of one operation."""

    operation: str
    status: Literal[
        "done", "nothing-to-do", "planned", "incomplete", "failed", "stopped", "needs-approval"
    ]
    """`incomplete`: the Result contains the progress. `stopped`: a limit was exceeded before any
    change."""
    reason: str
    """One line; for a failure, with table, version, file and remedy."""
    started_at: Instant
    seconds: float = 0.0
    engine: Literal["local", "spark"] = "local"
    result: dict[str, Any] | None = None
    """The operation's own Result as JSON, or its Plan if it was only planned."""
    options: dict[str, Any] | None = None
    """The requested options, if `result` is a Plan."""
    table_id: str | None = None
    """The ID in the table's metadata, if `result` is a Plan."""
    commits: int = 0
    """The number of versions that were added."""
    exit_status: int = 0
    """The exit status of the command line."""
    retryable: bool = False
    """Whether a repetition may succeed."""
    before: TableState | None = None
    """The table before the operation, as it was last assessed."""
    after: TableState | None = None
    cost: Cost | None = None
    freed: Freed | None = None
    """What became of the deleted files; None if none were deleted."""
    approved_by: str | None = None
    """The person who approved what was done, or else the run that did; None if nobody had to."""
    expected: ExpectedCost | None = None
    """What it was expected to take; None if nobody estimated it."""

    @property
    def was_done(self) -> bool:
        """Whether the operation ran, completely or not."""
        return self.status not in ("planned", "needs-approval", "stopped")

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do, or the operation only looked and found nothing."""
        record = known(self.operation)
        if record is None or self.status not in ("done", "planned", "nothing-to-do"):
            return self.status == "nothing-to-do"
        if record.effects.only_reads or self.status == "nothing-to-do":
            return True
        if self.status == "planned" and self.result is not None:
            plan = record.plan.from_json(self.result)
            return plan.is_noop and record.conclusion_of_plan(plan).outcome is not Outcome.CORRUPT
        # An fsck that has repaired something made a commit or deleted files; a publication does
        # neither.
        examines = record.takes == "table" and record.effects.commits
        return examines and self.amounts[1] == Amounts()

    @property
    def reports_corruption(self) -> bool:
        """Whether the operation examined the table, and its plan or result reports damage."""
        record = known(self.operation)
        if record is None or self.result is None or self.status not in ("planned", "failed"):
            return False
        if self.status == "planned":
            conclusion = record.conclusion_of_plan(record.plan.from_json(self.result))
        else:
            conclusion = record.conclusion(record.result.from_json(self.result))
        return conclusion.outcome is Outcome.CORRUPT

    @property
    def amounts(self) -> tuple[Amounts, Amounts]:
        """What was planned and what was done; nothing for documents of other releases."""
        record, nothing = known(self.operation), Amounts()
        if record is None or self.result is None:
            return nothing, nothing
        try:
            if not self.was_done:
                return record.planned_amounts(record.plan.from_json(self.result)), nothing
            return nothing, record.done_amounts(record.result.from_json(self.result))
        except InvalidRequestError:
            return nothing, nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainedVersion(Record):
    """The version of a table with which a run by its policy has dealt."""

    version: int | None
    """The version at the start of the run; None if the table could not be read."""
    started_at: Instant

    def covers(self, version: int, *, newest: int, announced_at: datetime) -> bool:
        """Whether a version that a watcher has announced needs no further run.

        `newest` is the newest version known to the watcher: a later one belongs to another table,
        which was at the address before.
        """
        if self.version is None:
            return self.started_at >= announced_at
        return version <= self.version <= newest


RunStatus = Literal[
    "done", "nothing-due", "planned", "incomplete", "failed", "stopped", "blocked", "deferred"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Record):
    """The outcomes of a run on one table."""

    name: str
    uri: str
    status: RunStatus
    """`blocked`: nothing could be run, for example because of maintenance hours or missing
    approvals. `deferred`: all that is due waits for a later run, because of the budget.
    """
    started_at: Instant
    ended_at: Instant
    outcomes: tuple[OperationOutcome, ...] = ()
    before: Assessment | None = None
    after: Assessment | None = None
    """None if nothing was run."""
    last_runs: tuple[LastRun, ...] = ()
    """The given records, updated; store them for the next assessment."""
    problem: str | None = None
    """The reason why the run ended early: one line, with the remedy."""
    exit_status: int = 0
    retryable: bool = False
    maintained: MaintainedVersion | None = None
    """None for plans, for operations on demand, and for failures that may pass."""

    @property
    def newest_assessment(self) -> Assessment | None:
        """The assessment after the run, or else the one before; None in a stored entry."""
        return self.after or self.before

    @property
    def shown_status(self) -> str:
        """The status, or `needs-approval` if the run only waits for approvals."""
        return "needs-approval" if self.waits_for_approval else self.status

    @property
    def waits(self) -> bool:
        """Whether an operation waits for an approval."""
        return any(outcome.status == "needs-approval" for outcome in self.outcomes)

    @property
    def waits_for_approval(self) -> bool:
        """Whether missing approvals are the only reason why nothing was run."""
        return self.status == "blocked" and self.waits


def updated_runs(
    outcome: OperationOutcome, before: Iterable[LastRun] = (), *, table_id: str | None
) -> tuple[LastRun, ...]:
    """Returns the records of the last runs after an operation has run, for the next assessment.

    `before` are the earlier records: a run that failed says nothing new about holders, and one that
    deleted nothing nothing new about what deletions free. A sound `fsck` ends what other operations
    reported.
    """
    before = tuple(before)
    earlier = next((run for run in before if run.operation == outcome.operation), None)
    held = earlier.held if earlier is not None else ()
    if outcome.result is not None:
        held = tuple(
            HeldBack.from_json(held_version) for held_version in outcome.result.get("held", ())
        )
    result = outcome.result or {}
    corruption = earlier.corruption if earlier is not None else None
    if outcome.exit_status == CorruptTableError.exit_status:
        corruption = outcome.reason
    elif outcome.operation == "fsck" and outcome.status == "done":
        corruption, before = None, tuple(replace(run, corruption=None) for run in before)
    latest = LastRun(
        operation=outcome.operation,
        at=outcome.started_at,
        version=result.get("version", -1),
        status=result.get("status", "failed"),
        held=held,
        table_id=table_id,
        freed=outcome.freed or (earlier.freed if earlier is not None else None),
        corruption=corruption,
    )
    return (*(run for run in before if run.operation != outcome.operation), latest)
