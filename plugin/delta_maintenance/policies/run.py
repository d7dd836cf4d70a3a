"""Runs the operations that are due on a table, in order, until done or stopped.

Each operation is planned on the current table, compared with the limits, and applied. Between
operations, the table is assessed again, because one operation changes the work of the next. An
operation that fails holds back only what needs it, because each is due and planned by what the
table is then: on a full disk, a vacuum makes room after `optimize` failed. An integrity check and
changes of the table, such as a longer retention, are needed by all. The run on a table also ends if
it cannot be read any more. A later run continues from there, because the due operations follow from
the table.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Literal

from delta_maintenance.address import identity_of
from delta_maintenance.errors import (
    BusyError,
    CommitUnknownError,
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
)
from delta_maintenance.operations.core.registry import known
from delta_maintenance.policies.approval import NO_APPROVALS, Approvals
from delta_maintenance.policies.assess import NewestSnapshots, assess_table, failed_assessment
from delta_maintenance.policies.budget.estimates import CostHistory
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.execute import (
    Context,
    RunEnvironment,
    execute,
    measure_outcome,
    plan_for_approval,
)
from delta_maintenance.policies.measuring import TableState
from delta_maintenance.policies.models import (
    AssessedOperation,
    Assessment,
    LastRun,
    MaintainedVersion,
    OperationOutcome,
    RunResult,
    RunStatus,
    updated_runs,
)
from delta_maintenance.quantities import duration_text
from delta_maintenance.table.read.table import Table

_MAX_RUNS = 2
"""The maximum number of runs of one operation: it is repeated once if other commits make it due
again.
"""
_ENDING: tuple[Literal["incomplete", "failed", "stopped"], ...] = (
    "incomplete",
    "failed",
    "stopped",
)
_ONCE = ("needs-approval", "incomplete", "failed")
"""An operation that ends so is left for the next run."""


def run(
    table: Table,
    policy_table: PolicyTable,
    *,
    last_runs: Sequence[LastRun] = (),
    approvals: Approvals = NO_APPROVALS,
    plan_only: bool = False,
    environment: RunEnvironment | None = None,
) -> RunResult:
    """Runs the operations that are due on the table according to its policy.

    An operation that needs an approval runs as `approvals` permit; without an approval it ends as
    `needs-approval`, with the operation's Plan as its result. With `plan_only` nothing is changed,
    and each outcome contains the Plan for the table as it is now. The lease of `environment` is
    taken before the first change and held until the end; a run that changes nothing never takes it.
    Errors are returned, not raised, also unexpected ones; except the `BusyError` of the lease and
    those that `environment` names.
    """
    environment = environment or RunEnvironment()
    with environment.claiming() as claim:
        context = Context(
            table=table,
            snapshots=environment.snapshots or NewestSnapshots(table),
            policy_table=policy_table,
            environment=environment,
            plans_on_spark=approvals.plans_on_spark,
            claim=claim,
        )
        run_of_operation = {last_run.operation: last_run for last_run in last_runs}
        return _Run(context, run_of_operation, approvals, plan_only).run()


def failed_run(
    table: PolicyTable,
    error: DeltaMaintenanceError,
    *,
    now: datetime,
    last_runs: Sequence[LastRun] = (),
) -> RunResult:
    """Returns the result for a table that could not be opened."""
    return result_without_run(failed_assessment(table, error, now=now), last_runs=last_runs)


def result_without_run(assessment: Assessment, *, last_runs: Sequence[LastRun] = ()) -> RunResult:
    """Returns the result for a table or a pattern on which nothing is to be run, for example
    because its assessment failed.
    """
    version = assessment.health.version if assessment.health is not None else None
    return RunResult(
        name=assessment.name,
        uri=assessment.uri,
        status="nothing-due" if assessment.status == "due" else assessment.status,
        started_at=assessment.assessed_at,
        ended_at=assessment.assessed_at,
        before=assessment,
        last_runs=tuple(last_runs),
        problem=assessment.problem,
        exit_status=assessment.exit_status,
        retryable=assessment.retryable,
        maintained=None
        if assessment.retryable
        else MaintainedVersion(version=version, started_at=assessment.assessed_at),
    )


@dataclass
class _Run:
    """One run on one table."""

    context: Context
    last_runs: dict[str, LastRun]
    approvals: Approvals
    plan_only: bool
    outcomes: list[OperationOutcome] = field(default_factory=list)
    booked: str | None = None
    """The operation at work in the account of the budget."""
    at_version: dict[str, list[int]] = field(default_factory=dict)
    """The versions on which each operation has run."""

    def __post_init__(self) -> None:
        # Asked once, and only if something was deleted.
        self._bytes_of_deleted = cache(self.context.table.store.bytes_of_deleted)

    def run(self) -> RunResult:
        began, started = time.monotonic(), self.context.environment.now()
        before = latest = self._assess(None)
        if before.due:
            budget = self.context.environment.budget
            place = time.monotonic() - began if budget is None else budget.place
            with self.context.environment.turn(place):
                latest = self._work(latest, started)
        after = None if latest is before else self._deferring(latest)
        return self._result(started, self._deferring(before), after)

    def _work(self, latest: Assessment, started: datetime) -> Assessment:
        """Runs the operations that are due; returns the assessment after them."""
        # Booked in the turn only: what waits for its turn would keep the budget from others.
        while (due := self._next(latest)) is not None:
            was = TableState.of(latest.health)
            try:
                outcome = replace(self._outcome(due, started), before=was)
            except BusyError:
                self._cancel_booking()
                raise
            self._cancel_booking()
            self.outcomes.append(outcome)
            planned_repair = outcome.status == "planned" and outcome.reports_corruption
            if outcome.status == "stopped" or planned_repair:
                break
            if outcome.status not in ("planned", "needs-approval"):
                latest = self._assess(latest)
                self._ended_at(latest)
            if _ends_the_run(outcome):
                break
        return latest

    def _ended_at(self, after: Assessment) -> None:
        """Completes the last outcome by the state of the table after it."""
        self.outcomes[-1] = replace(self.outcomes[-1], after=TableState.of(after.health))

    def _assess(self, previous: Assessment | None) -> Assessment:
        assessment = assess_table(
            self.context.table,
            self.context.policy_table,
            now=self.context.environment.now(),
            last_runs=tuple(self.last_runs.values()),
            previous=previous.health if previous is not None else self.context.environment.previous,
            snapshots=self.context.snapshots,
        )
        return self._deferring(assessment)

    def _deferring(self, assessment: Assessment) -> Assessment:
        """Returns the assessment with the operations that wait because of the budget."""
        budget = self.context.environment.budget
        return assessment if budget is None else budget.defer(assessment)

    def _next(self, latest: Assessment) -> AssessedOperation | None:
        version = latest.health.version if latest.health is not None else -1
        waiting = {o.operation for o in self.outcomes if o.status in _ONCE}
        for due in latest.due:
            if due.operation in waiting:
                continue
            turns = self.at_version.setdefault(due.operation, [])
            if len(turns) < _MAX_RUNS and (not turns or not self.plan_only and version > turns[-1]):
                if not self._is_afforded(due):
                    continue
                turns.append(version)
                return due
        return None

    def _is_afforded(self, due: AssessedOperation) -> bool:
        """Books an operation in the account of the budget; returns whether it may run."""
        budget = self.context.environment.budget
        if budget is None or self.plan_only:
            return True
        self.booked = budget.begin(due)
        return self.booked is not None

    def _cancel_booking(self) -> None:
        """Leaves to others what an operation booked that has not begun."""
        budget, self.booked, booked = self.context.environment.budget, None, self.booked
        if budget is not None and booked is not None:
            budget.account.cancel(booked)

    def _outcome(self, due: AssessedOperation, started: datetime) -> OperationOutcome:
        now = self.context.environment.now()
        blank = OperationOutcome(
            operation=due.operation,
            status="needs-approval",
            reason=due.reason,
            started_at=now,
            engine=due.engine,
        )
        needed = due.needs_approval and not self.plan_only
        needed = needed and due.operation not in self.approvals.operations
        if needed and due.operation in self.approvals.asked:
            return blank
        approved = self.approvals.plan_of(due.operation) if needed else None
        limit = self.context.policy_table.rules.limits.max_duration
        if limit is not None and now - started >= limit:
            return replace(
                blank,
                status="stopped",
                reason=f"the run has taken {duration_text(now - started)}, and "
                f"{duration_text(limit)} are allowed; run again",
                exit_status=RefusedError.exit_status,
            )
        commits_made = sum(outcome.commits for outcome in self.outcomes)

        def work() -> OperationOutcome:
            if needed and approved is None:
                return plan_for_approval(self.context, due, commits_made=commits_made)
            return execute(
                self.context,
                due,
                commits_made=commits_made,
                plan_only=self.plan_only,
                approved=approved,
            )

        outcome = measure_outcome(
            self.context, work, lambda: blank, bytes_of_deleted=self._bytes_of_deleted
        )
        outcome = self._compared(outcome, due)
        if due.needs_approval and not (needed and approved is None) and outcome.was_done:
            outcome = replace(outcome, approved_by=self.approvals.by)
        if outcome.status not in ("planned", "stopped", "needs-approval"):
            table_id = self.context.snapshots.known_id
            runs = updated_runs(outcome, self.last_runs.values(), table_id=table_id)
            self.last_runs = {last_run.operation: last_run for last_run in runs}
        return outcome

    def _compared(self, outcome: OperationOutcome, due: AssessedOperation) -> OperationOutcome:
        """Returns the outcome with what was expected of it, and books what it took."""
        budget = self.context.environment.budget
        place = identity_of(self.context.policy_table.uri)
        expected = CostHistory().expected(place, due) if budget is None else budget.expected(due)
        outcome = replace(outcome, expected=expected)
        if budget is not None and self.booked is not None:
            budget.end(self.booked, outcome)
            self.booked = None
        return outcome

    def _result(self, started: datetime, before: Assessment, after: Assessment | None) -> RunResult:
        status = self._status(before)
        ending_outcome = next(
            (outcome for outcome in self.outcomes if outcome.status == status), None
        )
        ended_by = (
            before if before.status == "failed" else ending_outcome if status in _ENDING else None
        )
        problem = (
            ended_by.problem
            if isinstance(ended_by, Assessment)
            else ended_by.reason
            if ended_by
            else None
        )
        retryable = ended_by is not None and ended_by.retryable
        version = before.health.version if before.health is not None else None
        return RunResult(
            name=self.context.policy_table.name,
            uri=self.context.policy_table.uri,
            status=status,
            started_at=started,
            ended_at=self.context.environment.now(),
            outcomes=tuple(self.outcomes),
            before=before,
            after=after,
            last_runs=tuple(self.last_runs.values()),
            problem=problem,
            exit_status=ended_by.exit_status if ended_by is not None else 0,
            retryable=retryable,
            maintained=None
            if retryable or self.plan_only
            else MaintainedVersion(version=version, started_at=started),
        )

    def _status(self, before: Assessment) -> RunStatus:
        if before.status == "failed":
            return "failed"
        statuses = [outcome.status for outcome in self.outcomes]
        for ending in _ENDING:
            if ending in statuses:
                return ending
        if "done" in statuses or "nothing-to-do" in statuses:
            return "done"
        if "planned" in statuses:
            return "planned"
        return before.status if before.status in ("nothing-due", "deferred") else "blocked"


def _ends_the_run(outcome: OperationOutcome) -> bool:
    """Whether the other operations need what an operation has not done: an integrity check, or a
    change of the table, such as a longer retention. Likewise if the table is corrupt, or the
    outcome of a commit is unknown.
    """
    record = known(outcome.operation)
    if outcome.status not in ("failed", "incomplete"):
        return False
    is_needed = record is None or record.name == "fsck" or record.effects.changes_table
    unknown = outcome.exit_status == CommitUnknownError.exit_status and not outcome.retryable
    return is_needed or unknown or outcome.exit_status == CorruptTableError.exit_status
