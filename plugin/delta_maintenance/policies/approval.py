"""What somebody agreed to, and whether what would be done now is still the same.

Between a plan and its approval hours may pass, in which more files outlive their retention. So what
is run afterwards is planned anew as of the instant of the plan that was approved, and runs only if
it comes to the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.policies.definition.rules import MAY_DELETE, AnyOperation

_CHANGE = (
    "table_id",
    "changes",
    "protocol_before",
    "protocol_after",
    "added_features",
    "converted_domains",
)
_DECISIVE: Mapping[AnyOperation, tuple[str, ...]] = {
    "upgrade-protocol": _CHANGE,
    "set-properties": (*_CHANGE, "maps_columns"),
    "backfill-row-ids": ("state", "changes_support"),
    "fsck": ("repairs",),
    "checkpoint": ("kind",),
    "compact-log": (),
    "clean-log": ("cut_off_instant", "oldest_version", "groups"),
    "vacuum": ("delete_before", "files", "bytes", "groups"),
    # Not its steps: of those a try that was interrupted leaves fewer.
    "drop-feature": ("ends", "protocol_before", "protocol_after", "oldest_version", "groups"),
    "add-constraint": _CHANGE,
}
_EXAMPLES = ("samples",)
"""Of the groups of a plan: which files are shown is chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedPlan(Record):
    """What there is to agree to, or was agreed to."""

    operation: AnyOperation
    table: str
    planned_at: Instant
    comes_to: str
    """Equal for plans that would do the same to the table. Whatever commits of others leave as it
    is has no part in it, such as the version."""

    @classmethod
    def of(cls, operation: AnyOperation, plan: Mapping[str, Any], *, planned_at: datetime) -> Self:
        """From a Plan as JSON."""
        return cls(
            operation=operation,
            table=plan["table"],
            planned_at=planned_at,
            comes_to=_digest(operation, plan),
        )

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options by which a later plan deletes nothing that was not old enough for this one."""
        if self.operation not in MAY_DELETE:
            return dict(options)
        return {**options, "as_of": self.planned_at.isoformat()}

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


def asks_for_approval(operation: AnyOperation, plan: Mapping[str, Any]) -> bool:
    """Whether a plan, as JSON, deletes something, raises the protocol, takes a feature out of it or
    repairs the table."""
    match operation:
        case "vacuum":
            return bool(plan["files"] or plan["directories"])
        case "clean-log":
            return bool(plan["groups"])
        case "upgrade-protocol" | "set-properties" | "add-constraint":
            return not plan["is_noop"] and plan["protocol_before"] != plan["protocol_after"]
        case "backfill-row-ids":
            return not plan["is_noop"] and bool(plan["changes_support"])
        case "fsck":
            return bool(plan["repairs"])
        case "drop-feature":
            return bool(plan["ends"] != "nothing-to-do")
        case _:
            return False


def _digest(operation: AnyOperation, plan: Mapping[str, Any]) -> str:
    decisive = {name: _essence(plan.get(name)) for name in _DECISIVE[operation]}
    text = json.dumps([operation, decisive], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _essence(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _essence(item) for key, item in value.items() if key not in _EXAMPLES}
    if isinstance(value, list | tuple):
        return [_essence(item) for item in value]
    return value
