"""What a backfill of row IDs is asked for, what it plans to do, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Record

NO_ROW_ID = -1
"""The high-water mark of a table that never assigned a row ID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRowIdsOptions(Record):
    """How to go about it."""

    files_per_commit: Annotated[
        int,
        AtLeast(1),
        Flag(help="files that one commit gives row IDs to, by default {default}"),
    ] = 22_000
    """Files that one commit gives row IDs to; as many as Delta Spark's."""
    engine: flags.Engine = "auto"
    """Who reads the footers of files whose statistics do not tell their number of rows."""
    auto_spark_files: Annotated[int, AtLeast(0)] = 100_000
    """With `engine="auto"`: from this many such files on, Spark does."""
    other_writers: flags.OtherWritersField = None
    """Who else commits to the table; has to be said of tables on S3."""
    operation_id: flags.OperationId = None
    """Of the task, to be told from others in the history; the same when it is run again."""
    operation_since: flags.OperationSince = None
    """When the task first began: with an `operation_id`, older commits are not looked at."""
    checkpoint: Annotated[
        bool,
        Flag(help="write no checkpoint behind the batches; the next reader replays them all"),
    ] = True
    """Whether to write a checkpoint behind the batches, so that the table opens as fast as
    before: they repeat every file."""
    convert_draft: Annotated[
        bool, Flag(help="convert a table of a draft of row tracking of 2023 to today's")
    ] = False
    """Whether a table of a draft of row tracking is converted to today's."""
    lift_suspension: Annotated[
        bool,
        Flag(
            help="unset delta.rowTrackingSuspended, which somebody who is dropping the feature sets"
        ),
    ] = False
    """Whether `delta.rowTrackingSuspended` is unset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRowIdsPlan(Record):
    """What `apply` will do, and why."""

    table: str
    version: int
    planned_at: datetime
    is_noop: bool
    """Whether `apply` would commit nothing."""
    reason: str
    """One sentence: what is to be done, or why nothing."""
    options: BackfillRowIdsOptions
    engine: Literal["local", "spark"] = "local"
    state: str
    """`unsupported`, `supported`, `suspended` or `enabled`."""
    changes_support: bool = False
    """Whether a commit is needed before any file can be given row IDs."""
    num_files: int = 0
    """Live ones."""
    files_to_backfill: int = 0
    rows_to_backfill: int = 0
    """Of those files, as far as their statistics tell; deleted rows count, for IDs are physical."""
    files_to_count: int = 0
    """Files of which only the footer tells the number of rows."""
    num_commits: int = 0
    high_water_mark: int = NO_ROW_ID
    """The highest row ID known to be assigned, -1 for none."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRowIdsResult(Record):
    """What was done."""

    table: str
    version: int
    """The latest one, as far as this run saw."""
    status: Literal["enabled", "nothing-to-do", "incomplete"]
    """`incomplete`: some commits were made and row tracking is not enabled, see `problem`. The
    table is sound, and another run goes on."""
    num_commits: int = 0
    files_backfilled: int = 0
    """By this run; what others gave row IDs to meanwhile is not among them."""
    high_water_mark: int = NO_ROW_ID
    checkpoint: str | None = None
    """The checkpoint that was written, relative to the table root."""
    problem: str | None = None
    uncounted: tuple[str, ...] = ()
    """Up to 100 files whose rows cannot be counted, each with the reason."""
    notes: tuple[str, ...] = ()
