"""What a run does on each table within a budget, and why the rest waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from delta_maintenance import clock
from delta_maintenance.address import digest_of, identity_of
from delta_maintenance.operations.core.assessment import AssessedOperation
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.policies.budget.account import BudgetAccount
from delta_maintenance.policies.budget.choice import (
    Budget,
    BudgetChoice,
    ChosenWork,
    DeferredWork,
    DueWork,
    Gain,
    choose,
)
from delta_maintenance.policies.budget.debt import begun_elsewhere, due_work
from delta_maintenance.policies.budget.estimates import CostHistory, taken_by
from delta_maintenance.policies.definition.budget import BudgetRule, Unit
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.measuring import ExpectedCost
from delta_maintenance.policies.models import Assessment, OperationOutcome, next_due_at, status_of
from delta_maintenance.quantities import duration_text

_DAY = timedelta(days=1)
_LEAST_RESERVE = 1.5
"""Of the expected costs of an operation that runs."""
UNIT_NAMES: Mapping[Unit, str] = {
    "cpu_seconds": "processor time",
    "seconds": "wall time",
    "bytes_rewritten": "rewritten bytes",
    "requests": "requests",
    "money": "money",
}
_WHY = {
    "repair": "repair",
    "deadline": "to keep the deadlines",
    "log": "cheap upkeep of the log",
    "gain": "gain for its cost",
    "order": "usual order, while something is left",
}
NO_DEADLINES = "the budget does not suffice for every operation to run within `most_intervals`"
"""What `BudgetChoice.keeps_deadlines` denies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment(Record):
    """What a budget lets one table have in a run."""

    max_bytes: dict[str, int] = field(default_factory=dict)
    """By operation: the bytes of the parts that fit, of operations that are done in parts."""
    deferred: dict[str, str] = field(default_factory=dict)
    """By operation: why it waits."""
    until: Instant | None = None
    """When the operations that wait may run at the earliest; None for the next run."""
    expected: dict[str, ExpectedCost] = field(default_factory=dict)
    """By operation: what those that do not wait are expected to take."""

    def defer(self, assessment: Assessment) -> Assessment:
        """Returns the assessment with the operations that wait, and those that are done in part.

        Operations that the choice did not know stay due.
        """
        operations = tuple(
            self._deferred(operation) if operation.status == "due" else operation
            for operation in assessment.operations
        )
        if operations == assessment.operations:
            return assessment
        return replace(
            assessment,
            operations=operations,
            status=status_of(operations),
            next_due_at=next_due_at(operations),
        )

    def _deferred(self, due: AssessedOperation) -> AssessedOperation:
        if due.operation in self.deferred:
            return _defer(due, self.deferred[due.operation], self.until)
        most, options = self.max_bytes.get(due.operation), due.options
        if most is None or options is None or not has_field(options, "max_bytes"):
            return due
        asked: int | None = getattr(options, "max_bytes")  # noqa: B009  not of all Options
        most = most if asked is None else min(asked, most)
        share = min(1.0, most / max(1, due.bytes_to_read))
        return replace(
            due,
            options=replace(options, max_bytes=most),  # type: ignore[call-arg]  # has_field
            bytes_to_read=most,
            bytes_to_copy=round(share * due.bytes_to_copy),
            requests=round(share * due.requests),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Record):
    """The choice among the due operations of all tables."""

    choice: BudgetChoice
    limits: dict[Unit, float]
    """What was left of the limits; empty if one of them is spent, or if there are none."""
    until: Instant | None
    allotments: dict[str, Allotment]
    """By the names of tables with due operations."""

    @property
    def places(self) -> dict[str, int]:
        """Where the tables of which something is chosen come in the order, by name."""
        return {item.work.table: at for at, item in reversed([*enumerate(self.choice.chosen)])}

    def defer(self, assessment: Assessment) -> Assessment:
        """Returns the assessment of a table with the operations that wait."""
        allotment = self.allotments.get(assessment.name)
        return assessment if allotment is None else allotment.defer(assessment)


def select_work(
    assessed: Sequence[tuple[Assessment, PolicyTable]],
    account: BudgetAccount,
    history: CostHistory,
    *,
    ranked: bool = True,
    now: datetime,
) -> Selection:
    """Chooses among the due operations of tables, with what is left in the account.

    Without `ranked`, everything runs in the usual order as long as something is left. What the run
    has booked already is not chosen among, and what another has begun takes nothing more.
    """
    rule, balance = account.rule, account.balance()
    work = []
    for assessment, table in assessed:
        for due in assessment.due:
            digest = digest_of(work_name(table, due))
            if digest not in balance.booked:
                expected = history.expected(identity_of(table.uri), due)
                item = due_work(assessment, due, table, expected)
                work.append(begun_elsewhere(item) if digest in balance.begun_elsewhere else item)
    until = _until(rule, now)
    limits = {unit: amount for unit, amount in balance.left.items() if amount > 0}
    reasons: dict[tuple[str, str], str] = {}
    choice = BudgetChoice(chosen=(), deferred=(), spent={}, keeps_deadlines=True)
    if len(limits) < len(balance.left):
        spent = [UNIT_NAMES[unit] for unit, amount in balance.left.items() if amount <= 0]
        nothing = f"the budget of {' and '.join(spent)} is spent or reserved"
        limits = {}
        waiting = (DeferredWork(work=item, better=0, needs=0.0, left=0.0) for item in work)
        choice = replace(choice, deferred=tuple(waiting))
        reasons = {(item.table, item.operation): nothing for item in work}
    elif ranked:
        budget = Budget(
            limits=limits,
            most_intervals=rule.most_intervals,
            every=_DAY,
            owner_limits=balance.left_by_owner,
        )
        choice = choose(work, budget, now=now)
        reasons = {
            (item.work.table, item.work.operation): _deferral_text(item, limits, rule.owners)
            for item in choice.deferred
        }
    else:
        choice = replace(choice, chosen=tuple(map(_in_usual_order, work)))
    parts = {
        (item.work.table, item.work.operation): item.parts
        for item in choice.chosen
        if item.parts < len(item.work.parts)
    }
    allotments = {}
    for assessment, table in assessed:
        names = {due.operation: (assessment.name, due.operation) for due in assessment.due}
        allotment = Allotment(
            max_bytes={
                due.operation: sum(part.bytes for part in due.parts[: parts[names[due.operation]]])
                for due in assessment.due
                if names[due.operation] in parts
            },
            deferred={name: reasons[key] for name, key in names.items() if key in reasons},
            until=until,
        )
        place = identity_of(table.uri)
        chosen = {
            due.operation: history.expected(place, due) for due in allotment.defer(assessment).due
        }
        if names:
            allotments[assessment.name] = replace(allotment, expected=chosen)
    return Selection(choice=choice, limits=limits, until=until, allotments=allotments)


def _in_usual_order(work: DueWork) -> ChosenWork:
    return ChosenWork(work=work, parts=len(work.parts), why="order")


def work_name(table: PolicyTable, due: AssessedOperation) -> str:
    """Returns the name of an operation on a table in the account."""
    return f"{identity_of(table.uri)} {due.operation}"


def choice_text(item: ChosenWork) -> str:
    """Returns why an operation is chosen, and how many of its parts."""
    number = len(item.work.parts)
    why = _WHY[item.why] if item.work.risk is None else f"repair: {item.work.risk}"
    if item.why == "gain" and not any(part.gain for part in item.work.parts):
        why = "fits into what is left"
    why = why if item.work.note is None else f"{why}, {item.work.note}"
    return f"{why}{f', {item.parts} of {number} parts' * (item.parts < number)}"


def spared_text(gain: Gain) -> str:
    """Returns what the chosen operations spare readers and the store, in one line."""
    log = f"{size_text(int(gain.log_bytes))}, {gain.seconds_to_open:,.1f} s to open"
    amounts = (
        (gain.data_files, f"{gain.data_files:,.0f} data files"),
        (gain.log_files, f"{gain.log_files:,.0f} files of the log ({log})"),
        (gain.stored_bytes, f"{size_text(int(gain.stored_bytes))} stored"),
    )
    return f"spared a day: {', '.join(text for amount, text in amounts if amount) or 'nothing'}"


def amount_text(unit: Unit, amount: float) -> str:
    """Returns an amount of what a budget limits."""
    if unit == "bytes_rewritten":
        return size_text(int(amount))
    if unit in ("seconds", "cpu_seconds") and amount >= 60:
        # A ledger may have rows with any numbers.
        return duration_text(timedelta(seconds=round(min(amount, 1e13))))
    if amount >= 100:
        return f"{amount:,.0f}"
    return f"{amount:.3g}{' s' * (unit in ('seconds', 'cpu_seconds'))}"


def left_text(item: DeferredWork, limits: Mapping[Unit, float], owners: Collection[str]) -> str:
    """Returns how much of the limit that an operation exceeds is left for its table."""
    assert item.unit is not None
    amount = amount_text(item.unit, item.left * limits[item.unit])
    whose = f" for tables of {item.work.owner}" if item.work.owner in owners else ""
    return f"{amount} of the {UNIT_NAMES[item.unit]} left{whose}"


def _deferral_text(
    item: DeferredWork, limits: Mapping[Unit, float], owners: Collection[str]
) -> str:
    """Returns why an operation waits, in one clause."""
    assert item.unit is not None
    better = f"after {count_text(item.better, 'operation')} with more gain for their cost, "
    needs = amount_text(item.unit, item.needs * limits[item.unit])
    return f"{better * (item.better > 0)}it needs {needs}, with {left_text(item, limits, owners)}"


@dataclass(kw_only=True)
class TableBudget:
    """The budget of the run on one table: its allotment, and the account of all tables."""

    table: PolicyTable
    account: BudgetAccount
    history: CostHistory = field(default_factory=CostHistory)
    allotment: Allotment = field(default_factory=Allotment)
    place: int = 0
    """Where the table comes in the order of the choice."""
    _spent: set[str] = field(default_factory=set)
    """The operations that found nothing left in the account, or have begun what fits."""

    def defer(self, assessment: Assessment) -> Assessment:
        """Returns the assessment with the operations that wait."""
        until = _until(self.account.rule, self.account.now())
        waiting = {name: "the budget is spent or reserved" for name in self._spent}
        spent = Allotment(deferred=waiting, until=until)
        return spent.defer(self.allotment.defer(assessment))

    def begin(self, due: AssessedOperation) -> str | None:
        """Books an operation; None if it must wait."""
        expected = self.expected(due)
        # Others may run beside it: what it may take more must not be left for them.
        costs = {
            unit: max(expected.highest.get(unit, expected.most * cost), _LEAST_RESERVE * cost)
            for unit, cost in expected.costs.items()
        }
        work = work_name(self.table, due)
        booked = self.account.begin(costs, owner=self.table.owner, work=work)
        # The other parts of an operation do not fit.
        if booked is None or due.operation in self.allotment.max_bytes:
            self._spent.add(due.operation)
        return booked

    def end(self, booked: str, outcome: OperationOutcome) -> None:
        """Books what the operation took, and what was expected of it where that is unknown."""
        expected = {} if outcome.expected is None else outcome.expected.costs
        self.account.end(booked, {**expected, **taken_by(outcome, self.history.prices)})

    def expected(self, due: AssessedOperation) -> ExpectedCost:
        """Returns what an operation is expected to take."""
        known = self.allotment.expected.get(due.operation)
        return known or self.history.expected(identity_of(self.table.uri), due)


def _defer(due: AssessedOperation, why: str, until: datetime | None) -> AssessedOperation:
    reason = f"{due.reason}, but deferred {until_text(until)}: {why}"
    return replace(due, status="deferred", reason=reason, due_at=until)


def until_text(until: datetime | None) -> str:
    """Returns until when operations are deferred."""
    return "to the next run" if until is None else f"until {clock.text(until)}"


def _until(rule: BudgetRule, now: datetime) -> datetime | None:
    """Returns when what waits may run at the earliest; None for the next run, if it has limits of
    its own.
    """
    if rule.run.amounts() or not rule.day.amounts():
        return None
    return now.replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
