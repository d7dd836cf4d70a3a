"""The operation `touch`, an exercise: adds an empty version to an idle table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from delta_maintenance.operations.core import (
    Engine,
    Flag,
    OperationId,
    OperationSince,
    OtherWritersField,
    policy_option,
)
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchOptions(Record):
    """When a table counts as idle, and what the new version says."""

    older_than: Annotated[
        timedelta, Flag("the age of the newest version from which it is idle")
    ] = timedelta(days=30)
    note: str | None = policy_option(None, "a text for the history", metavar="TEXT")
    engine: Engine = "auto"
    other_writers: OtherWritersField = None
    operation_id: OperationId = None
    operation_since: OperationSince = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchPlan(Plan):
    """Whether the table is idle."""

    planned_at: datetime
    options: TouchOptions
    idle: bool
    engine: Literal["local", "spark"]

    @property
    def is_noop(self) -> bool:
        """Whether the table is in use."""
        return not self.idle


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchResult(Result):
    """The version that was added."""

    status: Literal["touched", "nothing-to-do", "conflict"]
    touched_by: str | None = None
    """The engine: `local` or the release of Spark."""


RECORD = OperationRecord(
    name="touch",
    title="Add an empty version",
    summary="add an empty version to an idle table",
    description="Add a version without changes to an idle table.",
    prints="Prints the version, with --dry-run whether the table is idle.",
    options=TouchOptions,
    plan=TouchPlan,
    result=TouchResult,
    code="delta_touch.operation",
    outcomes={
        "touched": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
        "conflict": Outcome.CONFLICT,
    },
    effects=Effects(commits=True),
    requires=("commit",),
    subjects=("note",),
    spark=SparkPart(engine="delta_touch.engine:SparkTouch"),
    policy=PolicyPart(
        key="touch",
        rule="delta_touch.policy:TouchRule",
        description="Empty versions of idle tables.",
        due="delta_touch.policy:due",
    ),
    decisive=("idle",),
    asks_for_approval=lambda plan: plan.idle,
    planned_amounts=lambda plan: Amounts(commits=int(plan.idle)),
    done_amounts=lambda result: Amounts(commits=int(result.status == "touched")),
)
