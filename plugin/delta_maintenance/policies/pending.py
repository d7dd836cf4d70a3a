"""Plans that wait for an approval, and snoozed operations.

Both are stored with the last assessment of a table (`policies.assessments`). They decide when to
ask for an approval, and approve nothing. An approval is passed on by the process that asked for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import find, known
from delta_maintenance.policies.approval import ApprovedPlan
from delta_maintenance.policies.models import RunResult

PLAN_LIFE = timedelta(hours=24)
"""The time for which a plan is shown before the operation is planned again."""


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
    commits: int = 0
    """Commits that would be made."""
    due_since: Instant
    """When the operation was first found due and waiting for approval."""
    link: str | None = None
    """The address of the open approval request."""

    @property
    def operation(self) -> str:
        """The verb of the command line."""
        return self.plan.operation

    @property
    def label(self) -> str:
        """Unique among the tables of a policy, such as `vacuum of sales/orders`."""
        return f"{self.operation} of {self.name}"


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
    new = {
        plan.operation: plan for plan in _planned(run, {each.operation: each for each in before})
    }
    ended = {each.operation for each in run.outcomes if each.status != "needs-approval"}
    kept = (each for each in before if each.operation not in new and each.operation not in ended)
    return (*new.values(), *kept)


def still_asked(
    pending: Sequence[PendingPlan], put_off: Sequence[PutOff], *, now: datetime
) -> frozenset[str]:
    """Returns the operations that are not planned again now, because they wait for an approval."""
    fresh = {each.operation for each in pending if now - each.plan.planned_at < PLAN_LIFE}
    return frozenset(fresh | put_off_operations(put_off, now=now))


def put_off_operations(put_off: Sequence[PutOff], *, now: datetime) -> set[str]:
    """Returns the operations that are snoozed beyond `now`."""
    return {each.operation for each in put_off if each.until > now}


def _planned(run: RunResult, before: dict[str, PendingPlan]) -> Iterator[PendingPlan]:
    for outcome in run.outcomes:
        if outcome.status != "needs-approval" or outcome.result is None:
            continue
        if known(outcome.operation) is None:
            continue
        record = find(outcome.operation)
        try:
            plan = ApprovedPlan.of(outcome)
            amounts = record.planned_amounts(record.plan.from_json(outcome.result))
        except InvalidRequestError:
            # A plan of another release; the next run plans again.
            continue
        earlier = before.get(outcome.operation)
        yield PendingPlan(
            name=run.name,
            uri=run.uri,
            plan=plan,
            reason=outcome.reason,
            files=amounts.deleted_files,
            bytes=amounts.deleted_bytes,
            share=amounts.deleted_files / amounts.looked_at if amounts.looked_at else None,
            commits=amounts.commits,
            due_since=earlier.due_since if earlier is not None else outcome.started_at,
        )
