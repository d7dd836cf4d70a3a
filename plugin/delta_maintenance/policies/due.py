"""Which operations are due on a table, in which order, and what prevents them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.core.assessed import AssessedOperation, LastRun
from delta_maintenance.operations.core.evaluation import EvaluationContext, blocked, text
from delta_maintenance.operations.core.operation import PolicyPart, load
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.registry import AnyOperation, find, policy_operations
from delta_maintenance.operations.health import TableHealth
from delta_maintenance.policies.definition.rules import Rules
from delta_maintenance.table.read.snapshot import Snapshot


def assessed_operations(
    snapshot: Snapshot,
    health: TableHealth,
    rules: Rules,
    *,
    now: datetime,
    last_runs: Mapping[str, LastRun],
) -> Iterator[AssessedOperation]:
    """The requested operations, in the order in which they run."""
    context = EvaluationContext(
        snapshot=snapshot,
        health=health,
        rules=rules,
        now=now,
        last_runs=last_runs,
        is_due=lambda name: _is_due(context, rules, name),
    )
    for record in _order(rules):
        assessed = _assessed(context, rules, record)
        if assessed is not None:
            yield assessed


def _order(rules: Rules) -> list[AnyOperation]:
    """The usual order, except for operations that a rule puts before others."""
    order = list(policy_operations())
    for record in tuple(order):
        for name in _before(record.policy, rules):
            at = next(at for at, each in enumerate(order) if each.name == name)
            if order.index(record) > at:
                order.remove(record)
                order.insert(at, record)
    return order


def _before(part: PolicyPart | None, rules: Rules) -> tuple[str, ...]:
    value = rules.value(part.key) if part is not None else None
    if part is None or part.before is None or value is None:
        return ()
    names: Callable[[object], tuple[str, ...]] = load(part.before)
    return names(value)


def _is_due(context: EvaluationContext, rules: Rules, name: str) -> bool:
    assessed = _assessed(context, rules, find(name))
    return assessed is not None and assessed.status == "due"


def _assessed(
    context: EvaluationContext, rules: Rules, record: AnyOperation
) -> AssessedOperation | None:
    """One operation with its obstacles; None if the policy does not request it."""
    assert record.policy is not None
    due: Callable[[EvaluationContext], AssessedOperation | None] = load(record.policy.due)
    try:
        assessed = due(context)
    except DeltaMaintenanceError as error:
        # The plan would be refused, and only a change of the table or of its policy helps.
        return blocked(record.name, "; ".join(filter(None, (error.problem, error.remedy))))
    if assessed is None or assessed.status != "due":
        return assessed
    assessed = replace(assessed, needs_approval=record.name in rules.approval)
    problem = _refusal(context, record)
    if problem is not None:
        return replace(assessed, status="blocked", reason=f"{assessed.reason}, but {problem}")
    hours = rules.hours
    if hours is None or hours.is_open(context.now):
        return assessed
    opening = hours.next_opening(context.now)
    return replace(
        assessed,
        status="blocked",
        reason=f"{assessed.reason}, but the maintenance hours begin at {text(opening)}",
        due_at=opening,
    )


def _refusal(context: EvaluationContext, record: AnyOperation) -> str | None:
    """Returns the reason why the table cannot have the operation, as one clause with its remedy."""
    refused = {refusal.operation: refusal.problem for refusal in context.health.refused}
    problem = next((refused[needed] for needed in record.requires if needed in refused), None)
    if problem is None and record.effects.deletes and _was_corrupt(context):
        return "fsck found the table corrupt; repair it, and examine it again"
    return problem


def _was_corrupt(context: EvaluationContext) -> bool:
    """Whether the last integrity check found the table corrupt."""
    return any(run.outcome is Outcome.CORRUPT for run in context.last_runs.values())
