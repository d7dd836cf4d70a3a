"""The tables on the health page: a row for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal, get_args

from delta_maintenance.address import identity_of
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.operations.holds.models import HeldBack
from delta_maintenance.operations.layout import LayoutResult
from delta_maintenance.policies.acknowledgements import ASSESSMENT, Acknowledgement, Failure
from delta_maintenance.policies.assessments import AssessmentEntry, PastRun, UnreadableEntry
from delta_maintenance.policies.models import AssessedOperation, Assessment, RunResult
from delta_maintenance_airflow.health_page.approvals import WaitingPlan
from delta_maintenance_airflow.health_page.known_tables import KnownTable, KnownTables
from delta_maintenance_airflow.health_page.trouble import (
    FsckSummary,
    Problem,
    RemedyStep,
    examination_of,
    problem_of,
    steps_for,
)

PlansOf = Callable[[AssessmentEntry], tuple[WaitingPlan, ...]]
"""Returns the plans of a table that wait for an approval."""

Status = Literal[
    "failed",
    "unreadable",
    "needs-approval",
    "blocked",
    "due",
    "to-check",
    "deferred",
    "never-assessed",
    "acknowledged",
    "nothing-due",
]
STATUSES: tuple[Status, ...] = get_args(Status)
"""The order of statuses: those that need attention most come first."""
_NOT_BEGUN = ("needs-approval", "stopped")
_ONLY_PLANNED = ("needs-approval", "planned")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One table, or one pattern that cannot be listed, with everything known about it."""

    name: str
    uri: str | None
    status: Status
    problem: str | None = None
    is_pattern: bool = False
    owner: str | None = None
    tags: tuple[str, ...] = ()
    in_policy: bool = True
    """False if the policy is readable and no longer contains it."""
    entry: AssessmentEntry | None = None
    plans: tuple[WaitingPlan, ...] = ()
    """The plans that wait for an approval."""

    @property
    def assessment(self) -> Assessment | None:
        """The last assessment."""
        return self.entry.assessment if self.entry is not None else None

    @property
    def health(self) -> TableHealth | None:
        """The newest known health."""
        return self.entry.health if self.entry is not None else None

    @property
    def run(self) -> RunResult | None:
        """The last run."""
        return self.entry.run if self.entry is not None else None

    @property
    def layout(self) -> LayoutResult | None:
        """The newest report on the layout of files; None also for one of another release."""
        reports = self.entry.reports if self.entry is not None else ()
        result = next((report.result for report in reports if report.operation == "layout"), None)
        try:
            return None if result is None else LayoutResult.from_json(result)
        except InvalidRequestError:
            return None

    @property
    def held(self) -> tuple[HeldBack, ...]:
        """Who holds files of the table, most bytes first."""
        return self.assessment.held if self.assessment is not None else ()

    @property
    def held_bytes(self) -> int:
        """Their bytes; those of files of several holders count for each."""
        return sum(hold.bytes for hold in self.held)

    @property
    def link(self) -> str | None:
        """The address of the task of the last run."""
        return self.entry.link if self.entry is not None else None

    @property
    def trouble(self) -> Problem | None:
        """The parts of the problem."""
        if self.problem is None:
            return None
        return problem_of(self.problem, name=self.name, uri=self.uri)

    @property
    def cause(self) -> str | None:
        """Tells the cause of a failure from others: the same for tables that fail for one reason,
        also if versions and names of files differ.
        """
        trouble = self.trouble
        if trouble is None or self.status != "failed":
            return None
        text = trouble.text.replace(self.uri or self.name, "").replace(self.name, "")
        kind = Failure.of(ASSESSMENT, f"{text}; {trouble.remedy}").kind
        return sha256(kind.encode()).hexdigest()[:12]

    @property
    def examination(self) -> FsckSummary | None:
        """What the last fsck has found."""
        return examination_of(self.entry) if self.entry is not None else None

    @property
    def steps(self) -> tuple[RemedyStep, ...]:
        """What to do about a table that cannot be read."""
        trouble = self.trouble
        if self.entry is None or trouble is None or self.entry.assessment.status != "failed":
            return ()
        return steps_for(self.entry, trouble, self.examination)

    @property
    def why(self) -> str | None:
        """The reason for the status, in one line."""
        if self.trouble is not None:
            return self.trouble.text
        operations = self.assessment.operations if self.assessment is not None else ()
        reasons = {assessed.operation: assessed.reason for assessed in operations}
        for operation, _, waiting in self.pending_operations:
            return waiting.plan.reason if waiting is not None else reasons[operation]
        return None

    @property
    def failing_link(self) -> str | None:
        """The address of the task that reports a failure."""
        if self.entry is None or self.status != "failed":
            return None
        assessed = self.entry.assessment.status == "failed"
        return self.entry.assessed_link if assessed else self.entry.link

    @property
    def failing_since(self) -> datetime | None:
        """When the failure began."""
        if self.entry is None or self.status != "failed":
            return None
        if self.entry.failing_since is not None:
            return self.entry.failing_since
        failed: datetime | None = None
        for run in self.entry.history:
            if run.status != "failed":
                break
            failed = run.at
        return failed

    @property
    def acknowledgement(self) -> Acknowledgement | None:
        """The acknowledgement of the current failure."""
        return _acknowledgement(self.entry)

    @property
    def due(self) -> tuple[str, ...]:
        """The operations with work that the next run will start."""
        return self._in_state("due")

    @property
    def to_check(self) -> tuple[str, ...]:
        """The operations that are due by the calendar: the next run looks whether there is work."""
        return self._in_state("to-check")

    @property
    def waiting(self) -> tuple[str, ...]:
        """The operations with plans that wait for an approval."""
        return tuple(dict.fromkeys(waiting_plan.plan.operation for waiting_plan in self.plans))

    @property
    def will_ask(self) -> tuple[str, ...]:
        """The operations that the next run will plan, and then ask for an approval."""
        return self._in_state("needs-approval")

    @property
    def held_back(self) -> tuple[str, ...]:
        """The operations that wait for a change or for the hours, and snoozed ones."""
        put_off = _put_off(self.entry)
        return (
            *self._operations(lambda operation: operation.status == "blocked"),
            *self._operations(lambda operation: _is_put_off(operation, put_off)),
        )

    @property
    def deferred(self) -> tuple[str, ...]:
        """The operations that wait because of the budget."""
        return self._in_state("deferred")

    @property
    def pending_operations(self) -> tuple[tuple[str, str, WaitingPlan | None], ...]:
        """All these operations, each with its status, and with its plan if one waits."""
        waiting = tuple((item.plan.operation, "needs-approval", item) for item in self.plans)
        groups = (
            (self.will_ask, "will-ask"),
            (self.due, "due"),
            (self.to_check, "to-check"),
            (self.held_back, "blocked"),
            (self.deferred, "deferred"),
        )
        return waiting + tuple(
            (item, status, None) for operations, status in groups for item in operations
        )

    @property
    def next_at(self) -> datetime | None:
        """From when on the next operation may run that only waits for a time."""
        operations = self.assessment.operations if self.assessment is not None else ()
        times = [operation.due_at for operation in operations if operation.due_at is not None]
        times += (
            [operation.until for operation in self.entry.put_off] if self.entry is not None else []
        )
        return min(times, default=None)

    @property
    def past_run(self) -> PastRun | None:
        """The summary of the last run, if it did something."""
        if self.entry is None or self.run is None or not self.entry.history:
            return None
        newest = self.entry.history[0]
        return newest if newest.at == self.run.started_at else None

    def _in_state(self, state: str) -> tuple[str, ...]:
        """The operations in a state, without those that a person was asked about."""
        planned = {waiting.plan.operation for waiting in self.plans if not waiting.plan.requested}
        asked = planned | _put_off(self.entry)
        return self._operations(
            lambda operation: operation.state == state and not _is_put_off(operation, asked)
        )

    def _operations(self, chosen: Callable[[AssessedOperation], bool]) -> tuple[str, ...]:
        operations = self.assessment.operations if self.assessment else ()
        return tuple(operation.operation for operation in operations if chosen(operation))

    @property
    def last_maintenance(self) -> LastMaintenance | None:
        """The last maintenance of the table, by this library or others; a run that only made plans
        is none.
        """
        for run in self.entry.history if self.entry is not None else ():
            if run.status in _ONLY_PLANNED:
                continue
            outcomes = [outcome.split(": ") for outcome in run.operations]
            started = [operation for operation, status in outcomes if status not in _NOT_BEGUN]
            return LastMaintenance(
                what=", ".join(started or [operation for operation, _ in outcomes]) or "run",
                result=run.status,
                at=run.at + timedelta(seconds=run.seconds),
                link=run.link,
            )
        if self.health is not None and self.health.maintenance:
            maintenance = self.health.maintenance[0]
            return LastMaintenance(
                what=maintenance.operation.lower(),
                result=(maintenance.result or "committed").lower(),
                at=maintenance.timestamp,
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMaintenance:
    """A maintenance operation, its result, and its time."""

    what: str
    result: str
    at: datetime
    link: str | None = None
    """The address of the task; None for what comes from the log of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Tables that fail for one reason, or a single table."""

    rows: tuple[TableRow, ...]

    @property
    def first(self) -> TableRow:
        """The table whose problem is shown."""
        return self.rows[0]


def group_by_cause(rows: Iterable[TableRow]) -> tuple[RowGroup, ...]:
    """The rows in their order, those that fail for one reason together."""
    groups: dict[object, list[TableRow]] = {}
    for row in rows:
        groups.setdefault(row.cause or object(), []).append(row)
    return tuple(RowGroup(rows=tuple(members)) for members in groups.values())


def build_rows(
    entries: Iterable[AssessmentEntry | UnreadableEntry],
    policy_tables: KnownTables,
    *,
    plans_of: PlansOf = lambda entry: (),
) -> tuple[TableRow, ...]:
    """Builds a row for each entry, and for each table of the policy without an entry."""
    rows = [_row(entry, policy_tables, plans_of) for entry in entries]
    identities = {
        row.entry.identity or identity_of(row.uri) for row in rows if row.entry and row.uri
    }
    rows += (
        never_assessed(table)
        for table in policy_tables.tables
        if identity_of(table.uri) not in identities
    )
    return tuple(rows)


def row_of(
    entry: AssessmentEntry, policy_tables: KnownTables, *, plans_of: PlansOf = lambda entry: ()
) -> TableRow:
    """The row of one entry."""
    acknowledged = _acknowledgement(entry) is not None
    if entry.assessment.subject == "pattern":
        return TableRow(
            name=entry.name,
            uri=None,
            status="acknowledged" if acknowledged else "failed",
            problem=entry.assessment.problem,
            is_pattern=True,
            in_policy=policy_tables.has_pattern(entry.name) or not policy_tables.readable,
            entry=entry,
        )
    table = policy_tables.find(entry.name, entry.assessment.uri)
    plans = plans_of(entry)
    status: Status = "acknowledged" if acknowledged else _status(entry, plans)
    run_problem = entry.run.problem if entry.run is not None and entry.failure else None
    return TableRow(
        name=entry.name,
        uri=entry.assessment.uri,
        status=status,
        problem=entry.assessment.problem or run_problem,
        owner=(table.owner if table is not None else None) or entry.assessment.owner,
        tags=(table.tags if table is not None else ()) or entry.assessment.tags,
        in_policy=table is not None or not policy_tables.readable,
        entry=entry,
        plans=plans,
    )


def _status(entry: AssessmentEntry, plans: Sequence[WaitingPlan]) -> Status:
    """Combines the last assessment and the last run to one status."""
    assessment, run = entry.assessment, entry.run
    if assessment.status == "failed":
        return "failed"
    put_off = _put_off(entry)
    open_states = {due.state for due in assessment.due if not _is_put_off(due, put_off)}
    if run is not None and run.status == "failed" and entry.failure is not None:
        return "failed"
    if plans:
        return "needs-approval"
    if open_states:
        return "to-check" if open_states == {"to-check"} else "due"
    return "blocked" if assessment.due else assessment.status


def _is_put_off(operation: AssessedOperation, names: set[str]) -> bool:
    return operation.status == "due" and operation.needs_approval and operation.operation in names


def _put_off(entry: AssessmentEntry | None) -> set[str]:
    # Each assessment removes expired entries.
    return {answer.operation for answer in entry.put_off} if entry is not None else set()


def _acknowledgement(entry: AssessmentEntry | None) -> Acknowledgement | None:
    # As of the last assessment, like everything on the page.
    return entry.acknowledgement_at(now=entry.assessment.assessed_at) if entry is not None else None


def never_assessed(table: KnownTable) -> TableRow:
    """The row of a table that was never assessed."""
    return TableRow(
        name=table.name, uri=table.uri, status="never-assessed", owner=table.owner, tags=table.tags
    )


def _row(
    entry: AssessmentEntry | UnreadableEntry, policy_tables: KnownTables, plans_of: PlansOf
) -> TableRow:
    if isinstance(entry, AssessmentEntry):
        return row_of(entry, policy_tables, plans_of=plans_of)
    return TableRow(name=entry.file, uri=None, status="unreadable", problem=entry.problem)
