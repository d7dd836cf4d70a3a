"""A table as it stands, held against what its policy asks for, and what may be said of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from delta_maintenance.operations.core.assessed import AssessedOperation, LastRun
from delta_maintenance.operations.core.facts import count_text

if TYPE_CHECKING:
    from delta_maintenance.operations.core.rules import RulesInForce
    from delta_maintenance.operations.health import TableHealth
    from delta_maintenance.table.read.snapshot import Snapshot

__all__ = ["Look", "blocked", "count_text", "given", "not_due", "requests_to_list", "since", "text"]

_LISTED_AT_ONCE = 1000
"""Files that one request lists."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Look:
    """A table as it stands, and what its policy asks for."""

    snapshot: Snapshot
    health: TableHealth
    rules: RulesInForce
    now: datetime
    last_runs: Mapping[str, LastRun]
    is_due: Callable[[str], bool]
    """Whether another operation is due."""

    def rule(self, key: str, kind: type[Value]) -> Value | None:
        """What the policy says under an operation's key, if it says anything."""
        value = self.rules.value(key)
        return value if isinstance(value, kind) else None

    def last_run(self, name: str) -> LastRun | None:
        """The last run that did what it was to do, if one is remembered."""
        run = self.last_runs.get(name)
        return run if run is not None and run.succeeded else None


def not_due(name: str, reason: str, due_at: datetime | None = None) -> AssessedOperation:
    """What need not be done."""
    return AssessedOperation(operation=name, status="not-due", reason=reason, due_at=due_at)


def blocked(name: str, reason: str) -> AssessedOperation:
    """What cannot be done before somebody changes something."""
    return AssessedOperation(operation=name, status="blocked", reason=reason)


def since(
    name: str, last: datetime | None, every: timedelta, now: datetime
) -> tuple[str, datetime | None]:
    """Why it is due by the calendar, or not, and when it will be."""
    if last is None:
        return f"no {name} is known", None
    if now - last >= every:
        return f"the last {name} was at {text(last)}, more than {every} ago", None
    return f"the last {name} was at {text(last)}", last + every


def given(**options: Any) -> dict[str, Any]:
    """Those that say something; the others are the operation's own business."""
    return {name: value for name, value in options.items() if value is not None}


def requests_to_list(files: int) -> int:
    """How many requests it takes to list so many files."""
    return -(-files // _LISTED_AT_ONCE)


def text(instant: datetime) -> str:
    """An instant for a sentence."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")
