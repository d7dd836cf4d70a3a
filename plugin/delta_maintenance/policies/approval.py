"""Approvals: what an approved plan binds, and its comparison with a later plan; waiting plans.

An approval binds the table, by its address and its ID; the operation and its options; and what the
plan would do. Hours can pass between a plan and its approval, and the retention of further files
can end in that time, and readers can move on. The operation is therefore planned again as of the
time of the approved plan, with the versions that were held then, and runs only if everything that
the approval binds is the same. The record of the operation names the fields of the Plan that must
be equal (`decisive`), and those that may not grow (`bounds`).

Plans that wait for an approval, and snoozed operations, are stored with the last assessment of a
table (`policies.assessments`). They decide when to ask for an approval, and approve nothing. An
approval is passed on by the process that asked for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Self

from delta_maintenance.address import Address, identity_of
from delta_maintenance.clock import SKEW
from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations.core.documents import Plan, without_controls
from delta_maintenance.operations.core.facts import brief_facts, count_text, size_text
from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import AnyOperation, find, known
from delta_maintenance.operations.holds.models import HeldBack, HeldVersions
from delta_maintenance.policies.models import OperationOutcome, RunResult

PLAN_LIFE = timedelta(hours=24)
"""The time for which a plan is shown before the operation is planned again."""
_EXAMPLES = ("samples",)
"""Fields of groups that are left out: the samples of files are arbitrary."""
_UNBOUND = ("engine", "auto_spark_bytes", "auto_spark_files", "workers")
"""Options that are not compared: they decide where the work is done."""
_REMEDY = "plan again; if the policy requires an approval, approve the new plan"
_SHOWN = 3
_SHORT = 40
"""Values of at most so many characters are kept as they are, so that messages can show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedPlan(Record):
    """A plan to approve, or an approved plan."""

    operation: str
    table: str
    """The address of the table."""
    table_id: str | None
    """The ID in the table's metadata. Without one, the plan cannot be approved."""
    planned_at: Instant
    options: dict[str, str] | None
    """The requested options, as short text or as a digest. Without them, the plan cannot be
    approved.
    """
    effect: dict[str, str]
    """The decisive fields of the Plan, as short text or as a digest. Values that other writers
    change without effect on the plan, such as the version, are not included.
    """
    at_most: dict[str, int]
    """The most that options such as `max_files` may allow."""
    held: tuple[HeldVersions, ...] = ()
    """The versions that were held. Readers may have moved on and kept versions may have been
    released when the plan is applied; it does no more for that."""

    @classmethod
    def of(cls, outcome: OperationOutcome) -> Self:
        """Returns what an approval of a planned operation binds.

        `InvalidRequestError` if the outcome has no plan of this release.
        """
        record = find(outcome.operation)
        if outcome.result is None:
            raise InvalidRequestError(
                f"{record.name} has no plan to approve", remedy="plan it, and approve the plan"
            )
        plan = record.plan.from_json(outcome.result)
        return cls(
            operation=record.name,
            table=_absolute(plan.table),
            table_id=outcome.table_id,
            # A job makes its plan later than the operation begins.
            planned_at=getattr(plan, "planned_at", outcome.started_at),
            options=None if outcome.options is None else _options(outcome.options),
            effect=_effect(record, plan),
            at_most={option: getattr(plan, name) for option, name in record.bounds.items()},
            held=HeldBack.versions(getattr(plan, "held", ())),
        )

    def narrow_options(self, record: AnyOperation, options: Record) -> Record:
        """Returns the options for planning again, so that the operation does no more than approved.

        Files whose retention ended later are kept, and so are those that were held; files that were
        written later are left alone, and the limits of the options are at most the approved
        amounts. `RefusedError` for another operation.
        """
        if record.name != self.operation:
            raise RefusedError(
                f"the approved plan is for {self.operation}, and {record.name} is requested",
                remedy=_REMEDY,
            )
        limits: dict[str, int] = {}
        for option in record.bounds:
            requested, allowed = getattr(options, option), self.at_most.get(option, 0)
            limits[option] = allowed if requested is None else min(requested, allowed)
        changes: dict[str, Any] = {**limits}
        if self.held and has_field(options, "holders"):
            changes["holders"] = options.holders.as_planned(self.held)  # type: ignore[attr-defined]
        return as_of(replace(options, **changes), self.planned_at)

    def same_as(self, other: ApprovedPlan) -> bool:
        """Whether two plans bind the same, whenever they were made."""
        return replace(self, planned_at=other.planned_at, held=other.held) == other

    def require(self, plan: Plan, options: Record, *, table_id: str | None) -> None:
        """Raises `RefusedError` unless a later plan is for the same table and has the approved
        options and effect.

        `options` are the requested ones, before `narrowed`; `table_id` is the ID of the planned
        table.
        """
        self._require_table(plan, table_id)
        # If the table already has the change, possibly from an earlier attempt, no approval is
        # needed.
        if not (plan.is_noop and find(self.operation).effects.changes_table):
            self._require_effect(plan, options)

    def _require_table(self, plan: Plan, table_id: str | None) -> None:
        address = _absolute(plan.table)
        if address != self.table:
            raise _refusal(plan, f"the approved plan is for another table, {self.table}")
        if self.table_id is None or self.options is None:
            raise _refusal(
                plan,
                "the approved plan lacks the ID or the options of its table, as plans of earlier "
                "releases do",
            )
        if table_id != self.table_id:
            raise _refusal(
                plan,
                f"the table was replaced: its ID is {table_id}, and the approved plan is for the "
                f"ID {self.table_id}",
            )

    def _require_effect(self, plan: Plan, options: Record) -> None:
        differences = _differences(self.options or {}, _options(options.to_json()))
        if differences:
            raise _refusal(
                plan,
                f"{self.operation} now has other options than the approved ones: {differences}",
            )
        record = find(self.operation)
        amounts = {option: getattr(plan, name) for option, name in record.bounds.items()}
        differs = _differences(self.effect, _effect(record, plan)) or "; ".join(
            f"{record.bounds[option]} {amount} instead of at most {allowed}"
            for option, amount in amounts.items()
            if amount > (allowed := self.at_most.get(option, 0))
        )
        if differs:
            raise _refusal(
                plan,
                f"the table has changed: {self.operation} would now have another effect than the "
                f"approved one: {differs}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Approvals:
    """The approvals for a run on one table."""

    operations: Collection[str] = ()
    """Operations that are approved with any plan."""
    plans: Sequence[ApprovedPlan] = ()
    """Individually approved plans."""
    by: str | None = None
    """The person who approved them, or else the run that did; None if unknown."""
    asked: Collection[str] = ()
    """Operations whose plans are already waiting or snoozed; they are not planned again."""
    plans_on_spark: bool = False
    """Whether to submit a Spark job for a plan that only a job can make."""

    def plan_of(self, operation: str) -> ApprovedPlan | None:
        """Returns the approved plan of an operation."""
        return next((plan for plan in self.plans if plan.operation == operation), None)


NO_APPROVALS = Approvals()


def as_of(options: Record, instant: datetime) -> Record:
    """Returns options with which an operation ignores what expires or is added after an instant."""
    if not has_field(options, "as_of"):
        return options
    requested = options.as_of  # type: ignore[attr-defined]  # see has_field
    earlier = instant if requested is None else min(requested, instant)
    return replace(options, as_of=earlier)  # type: ignore[call-arg]


def asks_for_approval(operation: str, plan: Mapping[str, Any]) -> bool:
    """Whether a plan, as JSON, deletes something, raises the protocol, drops a feature or repairs
    the table."""
    record = find(operation)
    return record.asks_for_approval(record.plan.from_json(plan))


def _refusal(plan: Plan, problem: str) -> RefusedError:
    return RefusedError(problem, table=plan.table, version=plan.version, remedy=_REMEDY)


def _absolute(table: str) -> str:
    """Returns an address by which plans of this process and of a Spark job can be compared."""
    return str(Address.parse(table).absolute())


def _options(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: _brief(value) for name, value in options.items() if name not in _UNBOUND}


def _effect(record: AnyOperation, plan: Plan) -> dict[str, str]:
    document = plan.to_json()
    return {name: _brief(_essence(document.get(name))) for name in record.decisive}


def _brief(value: Any) -> str:
    """Returns a text that orchestrators pass on as it is.

    Airflow renders the texts between tasks as templates, and turns those that are a literal of
    Python into its value.
    """
    text = json.dumps(value, sort_keys=True)
    if len(text) <= _SHORT and "{" not in text:
        return f"={text}"
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _differences(approved: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Returns the first differences as one clause; an empty text if there are none."""
    names = [name for name in {**approved, **now} if approved.get(name) != now.get(name)]
    return "; ".join(
        f"{name} {_shown(now.get(name))} instead of {_shown(approved.get(name))}"
        for name in names[:_SHOWN]
    )


def _essence(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _essence(item) for key, item in value.items() if key not in _EXAMPLES}
    if isinstance(value, list | tuple):
        return [_essence(item) for item in value]
    return value


def _shown(text: str | None) -> str:
    if text is None:
        return "nothing"
    return "others" if text.startswith("sha256:") else text.removeprefix("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPlan(Record):
    """A plan that waits for an approval, with the numbers that people need for their decision."""

    name: str
    """The name of the table in its policy."""
    uri: str
    plan: ApprovedPlan
    reason: str
    """Why the operation is due."""
    files: int = 0
    """Files that would be deleted."""
    bytes: int = 0
    share: float | None = None
    """The share of the examined files; None if a share is not meaningful."""
    oldest: Instant | None = None
    """When the first of the files was modified; None if the plan does not tell."""
    commits: int = 0
    """Commits that would be made."""
    due_since: Instant
    """When the operation was first found due and waiting for approval."""
    held: tuple[HeldBack, ...] = ()
    """Who holds files back that would be deleted otherwise."""
    facts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What the plan says to people, by the names of the facts."""
    requested: bool = False
    """Whether a person requested the plan, so that only the run that made it can carry it out."""
    link: str | None = None
    """The address of the open question."""
    asked_by: str | None = None
    """The name of the person who triggered the run that asks, if known."""
    expires_at: Instant | None = None
    """When the question closes without an answer."""
    approved_at: Instant | None = None
    """When the plan was approved, if its run has not ended yet."""

    @property
    def key(self) -> tuple[str, str | None]:
        """Tells the plans of one table apart: those of a policy by operation, others by run."""
        return self.operation, self.link if self.requested else None

    @property
    def id(self) -> str:
        """Tells this plan from every other one, also of the same operation on the same table."""
        bound = json.dumps([identity_of(self.uri), self.plan.to_json()], sort_keys=True)
        return hashlib.sha256(bound.encode()).hexdigest()[:12]

    def is_open(self, now: datetime) -> bool:
        """Whether the question about the plan can still be answered."""
        return self.link is not None and (self.expires_at is None or self.expires_at > now)

    def is_fresh(self, now: datetime) -> bool:
        """Whether the plan, which no person requested, is shown instead of a new one."""
        return not self.requested and -SKEW <= now - self.plan.planned_at < PLAN_LIFE

    def without_question(self, approved_at: datetime | None) -> Self | None:
        """Returns the plan after its question was closed; None if it is not asked about again."""
        if self.requested:
            return None
        return replace(self, link=None, asked_by=None, expires_at=None, approved_at=approved_at)

    @property
    def operation(self) -> str:
        """The verb of the command line."""
        return self.plan.operation

    @property
    def label(self) -> str:
        """Unique among the tables of a policy, such as `vacuum of sales/orders`.

        Characters that are not shown are escaped, so that no name looks like another one.
        """
        escaped = without_controls(self.name.replace("\\", "\\\\"))
        return f"{self.operation} of {escaped}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOff(Record):
    """A snoozed operation on a table."""

    operation: str
    answer: Literal["rejected", "snoozed"]
    until: Instant
    at: Instant
    by: str | None = None
    """The name of the person, if known."""


def pending_of(run: RunResult, before: Sequence[PendingPlan] = ()) -> tuple[PendingPlan, ...]:
    """Returns the waiting plans after a run: its own, and earlier ones of operations it did not
    plan.

    `before` are the plans that were waiting before the run.
    """
    earlier = {plan.operation: plan for plan in before if not plan.requested}
    new_plans = {plan.operation: plan for plan in _plans_of(run, earlier)}
    still = ("needs-approval", "planned")
    ended = {outcome.operation for outcome in run.outcomes if outcome.status not in still}
    earlier_plans = (
        plan
        for plan in before
        if plan.requested or (plan.operation not in new_plans and plan.operation not in ended)
    )
    return (*new_plans.values(), *earlier_plans)


def waiting_texts(pending: Sequence[PendingPlan]) -> Iterator[str]:
    """Yields a clause for each operation whose plans wait for an approval."""
    for operation in dict.fromkeys(plan.operation for plan in pending):
        plans = [plan for plan in pending if plan.operation == operation]
        where = f" of {len(plans):,} tables" if len(plans) > 1 else ""
        files = count_text(sum(plan.files for plan in plans), "file")
        size = size_text(sum(plan.bytes for plan in plans))
        yield f"{operation}{where} waits for approval: {files}, {size}"


def still_asked(
    pending: Sequence[PendingPlan], put_off: Sequence[PutOff], *, now: datetime
) -> frozenset[str]:
    """Returns the operations that are not planned again now, because they wait for an approval."""
    fresh = {plan.operation for plan in pending if plan.is_fresh(now)}
    return frozenset(fresh | put_off_operations(put_off, now=now))


def put_off_operations(put_off: Sequence[PutOff], *, now: datetime) -> set[str]:
    """Returns the operations that are snoozed beyond `now`."""
    return {answer.operation for answer in put_off if answer.until > now}


def plan_to_approve(
    outcome: OperationOutcome, *, name: str, uri: str, due_since: datetime | None = None
) -> PendingPlan:
    """Returns a planned operation as a plan that waits for an approval.

    `InvalidRequestError` if the outcome has no plan of this release.
    """
    approved, record = ApprovedPlan.of(outcome), find(outcome.operation)
    plan = record.plan.from_json(outcome.result)
    amounts = record.planned_amounts(plan)
    return PendingPlan(
        name=name,
        uri=uri,
        plan=approved,
        reason=outcome.reason,
        files=amounts.deleted_files,
        bytes=amounts.deleted_bytes,
        oldest=amounts.oldest,
        share=amounts.deleted_files / amounts.looked_at if amounts.looked_at else None,
        commits=amounts.commits,
        due_since=outcome.started_at if due_since is None else due_since,
        held=getattr(plan, "held", ()),
        facts=brief_facts(record.facts(plan)),
    )


def _plans_of(run: RunResult, before: Mapping[str, PendingPlan]) -> Iterator[PendingPlan]:
    for outcome in run.outcomes:
        if outcome.status != "needs-approval" or outcome.result is None:
            continue
        if known(outcome.operation) is None:
            continue
        since = earlier.due_since if (earlier := before.get(outcome.operation)) else None
        try:
            yield plan_to_approve(outcome, name=run.name, uri=run.uri, due_since=since)
        except InvalidRequestError:
            # A plan of another release; the next run plans again.
            continue
