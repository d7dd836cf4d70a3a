"""The operation `touch`: `plan` reads, and `apply` adds one empty version."""

from __future__ import annotations

from typing import Protocol

from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.features import Operation
from delta_maintenance.table.commit import Transaction, Writer
from delta_maintenance.table.commit.outcome import Conflicted
from delta_maintenance.table.read import Snapshot, Table
from delta_maintenance.table.writable import require_writable
from delta_touch import TouchOptions, TouchPlan, TouchResult


class TouchEngine(Protocol):
    """The distributed part of the work."""

    def name(self) -> str:
        """The name of the engine, for the history."""


def plan(
    snapshot: Snapshot, options: TouchOptions | None = None, context: RunContext | None = None
) -> TouchPlan:
    """Decides whether the table is idle. Writes nothing.

    Raises the errors of `require_writable`.
    """
    context = context or RunContext()
    options = (options or TouchOptions()).validated()
    require_writable(snapshot, Operation.COMMIT)
    # The commit of the version may have been deleted, so its time is unknown.
    age = None if snapshot.timestamp is None else context.started - snapshot.timestamp
    idle = age is not None and age >= options.older_than
    known = "of unknown age" if age is None else f"{age.days} days old"
    return TouchPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=context.started,
        options=options,
        idle=idle,
        engine="spark" if options.engine == "spark" else "local",
        reason=f"the newest version is {known}, and the table is idle from "
        f"{options.older_than.days} days on",
    )


def apply(table: Table, plan: TouchPlan, context: RunContext | None = None) -> TouchResult:
    """Adds an empty version, unless another writer added one since the plan was made."""
    context = context or RunContext()
    snapshot = table.snapshot()
    options, by = plan.options, "local" if context.engine is None else context.engine.name()
    if plan.is_noop or snapshot.version != plan.version:
        return TouchResult(table=plan.table, version=snapshot.version, status="nothing-to-do")
    ended = Transaction(
        snapshot,
        "TOUCH",
        parameters={"note": options.note or "", "by": by},
        operation_id=options.operation_id,
        writer=Writer(other_writers=options.other_writers, now=context.now, new_id=context.new_id),
    ).commit()
    return TouchResult(
        table=plan.table,
        version=ended.version,
        status="conflict" if isinstance(ended, Conflicted) else "touched",
        touched_by=by,
    )
