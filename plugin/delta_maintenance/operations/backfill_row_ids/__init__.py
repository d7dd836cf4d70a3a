"""Assigns row IDs to every file of a table and enables row tracking."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.core.flags import option
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Bounds, Positive, Record

if TYPE_CHECKING:
    from delta_maintenance.operations.backfill_row_ids.operation import apply, plan


NO_ROW_ID = -1
"""The high-water mark of a table that never assigned a row ID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRowIdsOptions(Record):
    """Options of a row ID backfill."""

    files_per_commit: Positive = option(
        22_000,
        "files that one commit gives row IDs to, by default {default}",
        group="commits and other writers",
    )
    engine: flags.Engine = "auto"
    auto_spark_files: Annotated[int, Bounds(0)] = 100_000
    """With `engine="auto"`: the number of such files from which on Spark is used."""
    other_writers: flags.OtherWritersField = None
    quiet: flags.QuietField = None
    operation_id: flags.OperationId = None
    operation_since: flags.OperationSince = None
    checkpoint: bool = option(
        True,
        "write a checkpoint after the batches, which is the default; otherwise the next reader "
        "replays all of them",
        group="common",
    )
    convert_draft: bool = option(
        False,
        "convert a table from the 2023 draft of row tracking to the final format",
        group="common",
    )
    lift_suspension: bool = option(
        False,
        "unset delta.rowTrackingSuspended, which a writer sets while it drops the feature",
        group="common",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRowIdsPlan(Plan):
    """The planned work, and its reason."""

    planned_at: datetime
    is_noop: bool
    """Whether `apply` would commit nothing."""
    reason: str
    """One sentence: the planned work, or the reason why there is none."""
    options: BackfillRowIdsOptions
    engine: Literal["local", "spark"] = "local"
    state: str
    """`unsupported`, `supported`, `suspended` or `enabled`."""
    changes_support: bool = False
    """Whether a commit is needed before files can get row IDs."""
    num_files: int = 0
    """Live files."""
    files_to_backfill: int = 0
    rows_to_backfill: int = 0
    """The rows of these files, if their statistics contain the count. Deleted rows count, because
    row IDs are physical."""
    files_to_count: int = 0
    """Files whose row count must be read from the footer."""
    num_commits: int = 0
    high_water_mark: int = NO_ROW_ID
    """The highest row ID known to be assigned, -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRowIdsResult(Result):
    """The completed work."""

    status: Literal["enabled", "nothing-to-do", "incomplete"]
    """`incomplete`: some commits were made but row tracking is not enabled, see `problem`. The
    table is valid, and another run continues."""
    num_commits: int = 0
    files_backfilled: int = 0
    """Files that this run assigned row IDs to, without those of concurrent writers."""
    high_water_mark: int = NO_ROW_ID
    checkpoint: str | None = None
    """The checkpoint that was written, relative to the table root."""
    problem: str | None = None
    uncounted: tuple[str, ...] = ()
    """Up to 100 files whose rows cannot be counted, each with the reason."""


_SHOWN = 10
"""The number of uncountable files shown; the Result contains more."""


def plan_facts(plan: BackfillRowIdsPlan) -> Facts:
    """The number of files and commits, and the reason."""
    facts: dict[str, object] = {}
    if not plan.is_noop:
        facts |= {
            "row tracking": plan.state,
            "files": plan.num_files,
            "files to backfill": plan.files_to_backfill,
            "rows to backfill": plan.rows_to_backfill,
            "footers to read": plan.files_to_count or None,
            "engine": plan.engine,
            "commits": plan.num_commits,
        }
    return facts | {"reason": plan.reason}


def result_facts(result: BackfillRowIdsResult) -> Facts:
    """The completed work."""
    return {
        "commits": result.num_commits,
        "files backfilled": result.files_backfilled,
        "high-water mark": result.high_water_mark,
        "checkpoint": result.checkpoint,
        "problem": result.problem,
        "uncounted": result.uncounted[:_SHOWN],
    }


def conclusion(result: BackfillRowIdsResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a result, with the reason if row tracking could not be enabled."""
    if result.problem is None:
        return Conclusion(outcome=outcome)
    were = "commit was" if result.num_commits == 1 else "commits were"
    return Conclusion(
        outcome=outcome,
        problem=f"{result.num_commits} {were} made, then: {result.problem}",
        remedy="see the Result, and run again to continue",
    )


RECORD = OperationRecord(
    name="backfill-row-ids",
    title="Enable row tracking, with IDs for all rows",
    purpose="table",
    summary="assign row IDs to all files; enable row tracking",
    description=(
        "Add support for row tracking to the table, commit its files again with row IDs, in "
        "batches, and enable row tracking when every live file has them. Other writers may "
        "commit in the meantime, and a later run continues an interrupted one."
    ),
    options=BackfillRowIdsOptions,
    plan=BackfillRowIdsPlan,
    result=BackfillRowIdsResult,
    code="delta_maintenance.operations.backfill_row_ids.operation",
    outcomes={
        "enabled": Outcome.DONE,
        "incomplete": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, changes_table=True),
    runs_on_corrupt=True,
    requires=("commit",),
    spark=SparkPart(engine="delta_maintenance.spark.statistics:SparkFooters"),
    policy=PolicyPart(
        key="row_tracking",
        rule="bool",
        description="`true` gives row IDs to every file and enables row tracking, `false` disables "
        "it.",
        due="delta_maintenance.operations.backfill_row_ids.operation:due",
    ),
    reuses_snapshot=True,
    decisive=("state", "changes_support"),
    asks_for_approval=lambda plan: not plan.is_noop and plan.changes_support,
    planned_amounts=lambda plan: Amounts(commits=plan.num_commits),
    done_amounts=lambda result: Amounts(commits=result.num_commits),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
