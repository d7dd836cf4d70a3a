"""Options, Plan and Result of `backfill-row-ids`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Document
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Record

NO_ROW_ID = -1
"""The high-water mark of a table that never assigned a row ID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRowIdsOptions(Record):
    """Options of a row ID backfill."""

    files_per_commit: Annotated[
        int, AtLeast(1), Flag("files that one commit gives row IDs to, by default {default}")
    ] = 22_000
    engine: flags.Engine = "auto"
    auto_spark_files: Annotated[int, AtLeast(0)] = 100_000
    """With `engine="auto"`: the number of such files from which on Spark is used."""
    other_writers: flags.OtherWritersField = None
    operation_id: flags.OperationId = None
    operation_since: flags.OperationSince = None
    checkpoint: Annotated[
        bool, Flag("write no checkpoint after the batches; the next reader replays all of them")
    ] = True
    """Whether to write a checkpoint after the batches. Without it, readers replay all batches."""
    convert_draft: Annotated[
        bool, Flag("convert a table from the 2023 draft of row tracking to the final format")
    ] = False
    lift_suspension: Annotated[
        bool,
        Flag("unset delta.rowTrackingSuspended, which a writer sets while it drops the feature"),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRowIdsPlan(Document):
    """The planned work, and its reason."""

    table: str
    version: int
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
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRowIdsResult(Document):
    """The completed work."""

    table: str
    version: int
    """The latest version that this run has seen."""
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
    notes: tuple[str, ...] = ()
