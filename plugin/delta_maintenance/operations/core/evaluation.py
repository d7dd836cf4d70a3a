"""The state of a table compared with the rules of its policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from delta_maintenance.clock import SKEW
from delta_maintenance.operations.core.assessed import AssessedOperation, LastRun
from delta_maintenance.operations.core.facts import count_text, duration_text

if TYPE_CHECKING:
    from delta_maintenance.operations.core.rules import RulesInForce
    from delta_maintenance.operations.health import TableHealth
    from delta_maintenance.table.read.snapshot import Snapshot

__all__ = [
    "EvaluationContext",
    "blocked",
    "count_text",
    "given",
    "not_due",
    "requests_to_list",
    "since",
    "text",
]

_LISTED_AT_ONCE = 1000
"""The number of files that one request lists."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """The state of a table, and the rules of its policy."""

    snapshot: Snapshot
    health: TableHealth
    rules: RulesInForce
    now: datetime
    last_runs: Mapping[str, LastRun]
    is_due: Callable[[str], bool]
    """Whether another operation is due."""

    def rule(self, key: str, kind: type[Value]) -> Value | None:
        """Returns the value of an operation's key in the policy, if any."""
        value = self.rules.value(key)
        return value if isinstance(value, kind) else None

    def last_run(self, name: str) -> LastRun | None:
        """Returns the last successful run, if there is a record of it."""
        run = self.last_runs.get(name)
        return run if run is not None and run.succeeded else None


def not_due(name: str, reason: str, due_at: datetime | None = None) -> AssessedOperation:
    """An operation that is not due."""
    return AssessedOperation(operation=name, status="not-due", reason=reason, due_at=due_at)


def blocked(name: str, reason: str) -> AssessedOperation:
    """An operation that is due but blocked until a person changes something."""
    return AssessedOperation(operation=name, status="blocked", reason=reason)


def since(
    name: str, last: datetime | None, every: timedelta, now: datetime
) -> tuple[str, datetime | None]:
    """Returns whether the operation is due by the calendar, as a reason, and when it will
    be due.
    """
    if last is None:
        return f"no run of {name} is recorded", None
    if last - now > SKEW:
        return f"the last {name} is recorded for {text(last)}, which is yet to come", None
    if now - last >= every:
        return f"the last {name} was at {text(last)}, more than {duration_text(every)} ago", None
    return f"the last {name} was at {text(last)}", last + every


def given(**options: Any) -> dict[str, Any]:
    """Returns the options that the policy sets; the operation has defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def requests_to_list(files: int) -> int:
    """Returns the number of requests that list this many files."""
    return -(-files // _LISTED_AT_ONCE)


def text(instant: datetime) -> str:
    """Formats an instant for a sentence."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")
