"""What somebody agreed to, and whether what would be done now is still the same.

Between a plan and its approval hours may pass, in which more files outlive their retention. So what
is run afterwards is planned anew as of the instant of the plan that was approved, and runs only if
it comes to the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import find

_EXAMPLES = ("samples",)
"""Of the groups of a plan: which files are shown is chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedPlan(Record):
    """What there is to agree to, or was agreed to."""

    operation: str
    table: str
    planned_at: Instant
    comes_to: str
    """Equal for plans that would do the same to the table. Whatever commits of others leave as it
    is has no part in it, such as the version."""

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
        return replace(options, as_of=self.planned_at)  # type: ignore[call-arg]

    def require(self, plan: Mapping[str, Any]) -> None:
        """`RefusedError` unless a later plan, as JSON, comes to the same."""
        if _digest(self.operation, plan) != self.comes_to:
            version = plan.get("version")
            raise RefusedError(
                f"the table has moved: {self.operation} would do something else now than what was "
                "approved",
                table=self.table,
                version=version if isinstance(version, int) else None,
                remedy="plan again, and have that approved",
            )


def asks_for_approval(operation: str, plan: Mapping[str, Any]) -> bool:
    """Whether a plan, as JSON, deletes something, raises the protocol, takes a feature out of it or
    repairs the table."""
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
