"""Approvals: the digest of a plan, and its comparison with a new plan.

Hours can pass between a plan and its approval, and the retention of more files ends in that time.
Therefore, the operation is planned again as of the instant of the approved plan, and runs only if
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
    """Equal for plans with the same effect on the table. Values that commits of other writers
    change without effect, such as the version, are not included."""

    @classmethod
    def of(cls, operation: str, plan: Mapping[str, Any], *, planned_at: datetime) -> Self:
        """From a Plan as JSON."""
        return cls(
            operation=operation,
            table=plan["table"],
            planned_at=planned_at,
            comes_to=_digest(operation, plan),
        )

    def options(self, options: Record) -> Record:
        """Options by which a later plan deletes nothing that was not old enough for this one."""
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
    """The approvals that a run over one table has, for operations that need one."""

    operations: Collection[str] = ()
    """Operations that are approved whatever their plans."""
    plans: Sequence[ApprovedPlan] = ()
    """Plans that are approved as they are."""
    asked: Collection[str] = ()
    """Operations whose plans were shown already or snoozed; they are not planned again."""
    plans_on_spark: bool = False
    """Whether a plan that only a Spark job can make is worth the job."""

    def plan_of(self, operation: str) -> ApprovedPlan | None:
        """The approved plan of an operation."""
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
