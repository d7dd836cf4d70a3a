"""`plan` and `apply` of the operations that change protocol and metadata by rules alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.table_change.models import Decision
from delta_maintenance.operations.table_change.operation import already_applied, execute
from delta_maintenance.operations.table_change.options import (
    ChangeOptions,
    ChangePlan,
    ChangeResult,
)
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

Options = TypeVar("Options", bound=ChangeOptions)
Plan = TypeVar("Plan", bound=ChangePlan)
Result = TypeVar("Result", bound=ChangeResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeVerb(Generic[Options, Plan, Result]):
    """The specific properties of one operation that changes protocol and metadata."""

    options_type: type[Options]
    plan_type: type[Plan]
    result_type: type[Result]
    decide: Callable[[Snapshot, Options, str], Decision]
    """Returns the change of a snapshot, given the Options and the ID of the operation."""
    reason: Callable[[Decision], str]
    planned: Callable[[Decision], Mapping[str, Any]]
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
            reason=done or self.reason(decision),
            **self.planned(decision),
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
