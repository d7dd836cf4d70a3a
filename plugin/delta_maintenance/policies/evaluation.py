"""A table as it stands, held against what its policy asks for, and what may be said of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from delta_maintenance.operations.health import TableHealth
from delta_maintenance.policies.definition.rules import DELETING, AnyOperation, OperationName, Rules
from delta_maintenance.policies.models import AssessedOperation, LastRun
from delta_maintenance.table.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Look:
    """A table as it stands, and what its policy asks for."""

    snapshot: Snapshot
    health: TableHealth
    rules: Rules
    now: datetime
    last_runs: Mapping[AnyOperation, LastRun]

    def last_run(self, name: OperationName) -> LastRun | None:
        """The last run that did what it was to do, if one is remembered."""
        run = self.last_runs.get(name)
        return run if run is not None and run.succeeded else None

    def refusal(self, name: OperationName) -> str | None:
        """What of the table stands in an operation's way, as one clause with its remedy."""
        refused = {refusal.operation: refusal.problem for refusal in self.health.refused}
        for needed in _NEEDED[name]:
            if needed in refused:
                return refused[needed]
        fsck = self.last_runs.get("fsck")
        if name in DELETING and fsck is not None and fsck.status == "corrupt":
            return "fsck found the table corrupt; repair it, and examine it again"
        return None


def not_due(name: OperationName, reason: str, due_at: datetime | None = None) -> AssessedOperation:
    """What need not be done."""
    return AssessedOperation(operation=name, status="not-due", reason=reason, due_at=due_at)


def blocked(name: OperationName, reason: str) -> AssessedOperation:
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


def count(number: int, thing: str) -> str:
    """`1 commit`, `2 commits`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def text(instant: datetime) -> str:
    """An instant for a sentence."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


_NEEDED: Mapping[OperationName, tuple[str, ...]] = {
    "upgrade-protocol": ("change-metadata",),
    "set-properties": ("change-metadata",),
    "backfill-row-ids": ("commit",),
    "fsck": (),
    "checkpoint": ("checkpoint",),
    "compact-log": ("compact-log",),
    "clean-log": ("clean-log",),
    "vacuum": ("vacuum",),
}
"""What of a protocol's operations each must be allowed to do."""
