"""Approvals: the digest of a plan, and its comparison with a later plan.

Hours can pass between a plan and its approval, and the retention of further files can end in that
time. The operation is therefore planned again as of the time of the approved plan, and runs only if
the effect is the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import find

_EXAMPLES = ("samples",)
"""Fields of groups that are left out: the samples of files are arbitrary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedPlan(Record):
    """A plan to approve, or an approved plan."""

    operation: str
    table: str
    planned_at: Instant
    comes_to: str
    """A digest of the effect on the table. Values that other writers change without effect on the
    plan, such as the version, are not included.
    """

    @classmethod
    def of(cls, operation: str, plan: Mapping[str, Any], *, planned_at: datetime) -> Self:
        """Builds the approved plan from a Plan as JSON."""
        return cls(
            operation=operation,
            table=plan["table"],
            planned_at=planned_at,
            comes_to=_digest(operation, plan),
        )

    def options(self, options: Record) -> Record:
        """Returns the options for planning again, so that no further files are deleted."""
        if not has_field(options, "as_of"):
            return options
        return replace(options, as_of=self.planned_at)  # type: ignore[call-arg]  # see has_field

    def require(self, plan: Mapping[str, Any]) -> None:
        """Raises `RefusedError` unless a later plan, as JSON, has the same effect."""
        if _digest(self.operation, plan) != self.comes_to:
            version = plan.get("version")
            raise RefusedError(
                f"the table has changed: {self.operation} would now have another effect than the "
                "approved one",
                table=self.table,
                version=version if isinstance(version, int) else None,
                remedy="plan again, and approve the new plan",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Approvals:
    """The approvals for a run on one table."""

    operations: Collection[str] = ()
    """Operations that are approved with any plan."""
    plans: Sequence[ApprovedPlan] = ()
    """Individually approved plans."""
    asked: Collection[str] = ()
    """Operations whose plans are already waiting or snoozed; they are not planned again."""
    plans_on_spark: bool = False
    """Whether to submit a Spark job for a plan that only a job can make."""

    def plan_of(self, operation: str) -> ApprovedPlan | None:
        """Returns the approved plan of an operation."""
        return next((plan for plan in self.plans if plan.operation == operation), None)


def asks_for_approval(operation: str, plan: Mapping[str, Any]) -> bool:
    """Whether a plan, as JSON, deletes something, raises the protocol, drops a feature or repairs
    the table."""
    record = find(operation)
    return record.asks_for_approval(record.plan.from_json(plan))


def _digest(operation: str, plan: Mapping[str, Any]) -> str:
    decisive = {name: _essence(plan.get(name)) for name in find(operation).decisive}
    text = json.dumps([operation, decisive], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _essence(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _essence(item) for key, item in value.items() if key not in _EXAMPLES}
    if isinstance(value, list | tuple):
        return [_essence(item) for item in value]
    return value
