"""The common part of operations that change the protocol and the metadata of a table.

`upgrade-protocol`, `set-properties`, `set-clustering` and `add-constraint` derive the future
protocol and metadata by pure rules, list the clients that lose access, and make one commit. A plan
is applied only if a new plan would make the same change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, Generic, TypeVar, cast

from delta_maintenance.errors import RefusedError, locating
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.documents import Document
from delta_maintenance.operations.table_change.documents import ChangeOptions, ChangePlan
from delta_maintenance.operations.table_change.models import ChangeOutcome, Decision
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.changes.enable import ChangeRequest, TableChange, changed_table
from delta_maintenance.protocol.commit.staged import StagedActions
from delta_maintenance.table.commit.idempotency import commit_after, commit_since
from delta_maintenance.table.commit.other_writers import DeclaredWriters
from delta_maintenance.table.commit.outcome import (
    AlreadyDone,
    CommitOutcome,
    Conflicted,
    Landed,
    require_committable,
)
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.writable import require_proved


def decide_change(
    snapshot: Snapshot,
    request: ChangeRequest,
    *,
    operation_id: str,
    protocol: Protocol | None = None,
    metadata: Metadata | None = None,
) -> TableChange:
    """Applies the request to the snapshot, or to a table with this protocol and metadata.

    The hidden columns of row tracking are named after the operation. Errors name the table.
    """
    require_proved(snapshot)
    ids = _ids(operation_id)
    with locating(table=snapshot.table, version=snapshot.version):
        change = changed_table(
            protocol or snapshot.protocol,
            metadata or snapshot.metadata,
            request,
            new_id=lambda: next(ids),
        )
        counts = snapshot.counts if change.depends_on_files else None
        for obstacle, count in (
            (change.forbids_files, counts and counts.num_files),
            (change.forbids_vectors, counts and counts.num_deletion_vectors),
        ):
            if obstacle is not None and count:
                raise RefusedError(
                    f"{obstacle.problem}, of which there are {count}", remedy=obstacle.remedy
                )
    return change


def already_applied(
    snapshot: Snapshot, *, operation_id: str | None, since: datetime | None
) -> str | None:
    """Returns one sentence if an earlier run of the task completed the change, even if it was
    undone since.

    `operation_id` is that of the caller: an ID that the plan generated cannot be in the log.
    """
    if operation_id is None:
        return None
    earlier = commit_since(snapshot, [operation_id], since)
    return (
        None
        if earlier is None
        else f"an earlier run of this task made the change, as version {earlier.version}"
    )


def require_changeable(snapshot: Snapshot, decision: Decision, *, writers: DeclaredWriters) -> None:
    """Makes the checks of the commit, except for a missing setting for other writers."""
    require_committable(
        snapshot,
        _staged(decision),
        drops=decision.drops,
        writers=writers if writers.other_writers is not None else Writer(other_writers="none"),
    )


def execute(
    table: Table,
    plan: ChangePlan,
    decide: Callable[[Snapshot], Decision],
    *,
    context: RunContext,
    examine: Callable[[Snapshot], None] | None = None,
) -> ChangeOutcome:
    """Decides again on the latest version, and commits if the decision equals the plan.

    `examine` checks the data that the change depends on, and raises if the change must not be made;
    with it, any concurrent change of data is a conflict. Raises `RefusedError` if the table was
    replaced or must no longer be changed, and `CommitUnknownError` if the outcome of the commit is
    unknown.
    """
    if plan.is_noop:
        return ChangeOutcome(status="nothing-to-do", version=plan.version, notes=(plan.reason,))
    with locating(table=table.uri):
        snapshot = table.snapshot()
        if snapshot.metadata.id != plan.table_id:
            raise RefusedError(
                "the table at this address was replaced after the plan",
                version=snapshot.version,
                remedy="plan again",
            )
        earlier = commit_after(snapshot, [plan.operation_id], plan.version)
        if earlier is not None:
            return ChangeOutcome(status="already-done", version=earlier.version, notes=plan.notes)
        decision = decide(snapshot)
        if decision.is_noop:
            return ChangeOutcome(status="already-done", version=snapshot.version, notes=plan.notes)
        if not _is_planned(decision, plan):
            problem = (
                f"the table was changed since version {plan.version}, for which this was planned; "
                "plan again"
            )
            return ChangeOutcome(
                status="conflict", version=snapshot.version, problem=problem, notes=plan.notes
            )
        if examine is not None:
            examine(snapshot)
        transaction = Transaction(
            snapshot,
            decision.operation,
            parameters=decision.parameters,
            operation_id=plan.operation_id,
            writer=context.writer(plan.options),
        )
        _stage(transaction, decision)
        depends = decision.depends_on_files or decision.after.depends_on_files
        if depends or examine is not None:
            # A file that another writer adds in the meantime may violate what the table requires of
            # every file.
            transaction.read_whole_table()
        return _ending(transaction.commit(), plan)


def _staged(decision: Decision) -> StagedActions:
    before, after = decision.before, decision.after
    return StagedActions(
        protocol=after.protocol if after.protocol != before.protocol else None,
        metadata=after.metadata if after.metadata != before.metadata else None,
        domains=decision.domains,
    )


def _stage(transaction: Transaction, decision: Decision) -> None:
    staged = _staged(decision)
    if staged.protocol is not None:
        transaction.stage_protocol(staged.protocol, drops=decision.drops)
    if staged.metadata is not None:
        transaction.stage_metadata(staged.metadata)
    for domain in staged.domains:
        transaction.stage_domain(domain.domain, domain.configuration)


def _is_planned(decision: Decision, plan: ChangePlan) -> bool:
    return all(getattr(decision, name) == getattr(plan, name) for name in decision.compared)


def _ending(outcome: CommitOutcome, plan: ChangePlan) -> ChangeOutcome:
    notes = plan.notes
    match outcome:
        case Landed(version=version, attempts=attempts):
            return ChangeOutcome(
                status="committed", version=version, attempts=attempts, notes=notes
            )
        case AlreadyDone(version=version):
            return ChangeOutcome(status="already-done", version=version, notes=notes)
        case Conflicted(version=version, attempts=attempts, conflict=conflict):
            problem = f"{conflict.explanation}; {conflict.remedy}"
            return ChangeOutcome(
                status="conflict", version=version, attempts=attempts, problem=problem, notes=notes
            )
    raise AssertionError("only commits that contain nothing but file actions can be superseded")


def _ids(operation_id: str) -> Iterator[str]:
    """Yields names that are the same each time the operation is planned."""
    yield operation_id
    for number in count(1):
        yield f"{operation_id}-{number}"


Options = TypeVar("Options", bound=ChangeOptions)
Plan = TypeVar("Plan", bound=ChangePlan)
Result = TypeVar("Result", bound=Document)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeVerb(Generic[Options, Plan, Result]):
    """The specific properties of one operation that changes protocol and metadata."""

    options_type: type[Options]
    plan_type: type[Plan]
    result_type: type[Result]
    decide: Callable[[Snapshot, Options, str], Decision]
    """Returns the change of a snapshot, given the Options and the ID of the operation."""
    reason: Callable[[Snapshot, Decision], str]
    planned: Callable[[Snapshot, Decision], Mapping[str, Any]]
    """Returns the fields of the Plan that only this operation has."""
    done: Callable[[Plan], Mapping[str, Any]]
    """Returns the fields of the Result that only this operation has, after the commit."""

    def plan(
        self, snapshot: Snapshot, options: Options | None = None, context: RunContext | None = None
    ) -> Plan:
        """Plans the change for the latest snapshot. Writes nothing.

        Raises `InvalidRequestError` for an invalid request, and `RefusedError` or
        `UnsupportedFeatureError` if this table does not permit it.
        """
        context = context or RunContext()
        options = (options or self.options_type()).validated()
        operation_id = options.operation_id or context.new_id()
        done = already_applied(
            snapshot, operation_id=options.operation_id, since=options.operation_since
        )
        decision = (
            self.decide(snapshot, options, operation_id)
            if done is None
            else Decision.nothing(snapshot)
        )
        return decision.as_plan(
            self.plan_type,
            snapshot,
            options,
            operation_id=operation_id,
            now=context.started,
            reason=done or self.reason(snapshot, decision),
            **self.planned(snapshot, decision),
        )

    def apply(
        self,
        table: Table,
        plan: Plan,
        context: RunContext | None = None,
        *,
        examine: Callable[[Snapshot], None] | None = None,
    ) -> Result:
        """Commits the planned change, if a new plan would make the same change.

        `examine` is that of `execute`.

        Raises `RefusedError` if the table was replaced or must no longer be changed, and
        `CommitUnknownError` if the outcome of the commit is unknown.
        """
        options = cast("Options", plan.options)
        ending = execute(
            table,
            plan,
            lambda snapshot: self.decide(snapshot, options, plan.operation_id),
            context=context or RunContext(),
            examine=examine,
        )
        fields = self.done(plan) if ending.status == "committed" else {}
        return ending.as_result(self.result_type, plan, **fields)
