"""What a vacuum is asked for, and what it plans to do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.table.commit.preconditions import OtherWriters

Mode = Literal["full", "lite", "inventory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions(Record):
    """What may go, and how it is found."""

    mode: Mode = "full"
    """`full` lists the table's folder; `lite` takes the log's word for what was removed, and finds
    nothing that never was in the table; `inventory` takes a list of the folder from elsewhere."""
    retention: timedelta | None = None
    """For how long removed files stay; by default the table's `delta.deletedFileRetentionDuration`,
    but a week at least. Shorter takes both flags."""
    allow_short_retention: bool = False
    """First flag: files that the table's retention, or the last week, covers may go."""
    no_other_writers: bool = False
    """Second flag: nobody writes to the table or reads older versions of it meanwhile."""
    as_of: Instant | None = None
    """An instant at which everything was as old as it counts: what has outlived its retention since
    then stays. For a plan that was approved a while ago."""
    keep_versions: tuple[int, ...] = ()
    """Versions of which every file stays, whatever their age."""
    inventory: str | None = None
    """For that mode: a Parquet file, a folder of them or a Delta table, with the columns `path`,
    `length`, `isDir` and `modificationTime`."""
    foreign_files: bool = False
    """Whether files go too whose names are not those of Delta's files."""
    allow_large_delete: bool = False
    """Whether more than 1,000 files may go that are more than half of all files, or bytes."""
    ignore_missing_files: bool = False
    """Whether to go on where files of the table are not there."""
    log_commits: bool | None = None
    """Whether VACUUM START and VACUUM END are committed. By default as Delta Spark has it:
    everywhere but on S3."""
    other_writers: OtherWriters | None = None
    """On S3, if these are committed: who else commits to the table."""
    engine: Literal["auto", "local", "spark"] = "auto"
    auto_spark_bytes: int = 4 << 30
    """From so many bytes of log on, `auto` takes Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFile(Record):
    """One file that will go."""

    path: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup(Record):
    """Files that will go for one reason."""

    reason: str
    count: int
    bytes: int
    samples: tuple[SampleFile, ...]
    """A few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup(Record):
    """Files that stay for one reason."""

    why: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumPlan(Record):
    """What `apply` will delete, why, and what stays. The exact list is the survey's."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: Instant
    options: VacuumOptions
    engine: Literal["local", "spark"]
    retention: timedelta
    delete_before: Instant
    """Tombstones and files of this instant or later stay."""
    files: int
    """How many will go."""
    bytes: int
    groups: tuple[DeadGroup, ...]
    kept: tuple[KeptGroup, ...]
    listed: int
    """Files that were looked at."""
    live_files: int
    """Data files of the version."""
    directories: int
    """Directories that will go once they are empty."""
    sample_directories: tuple[str, ...]
    large: str | None
    """Why `allow_large_delete` is needed, as one clause."""
    logs_commits: bool
    """Whether VACUUM START and VACUUM END will be committed."""
    first_commit: int | None = None
    """Of a plan by the log: the first commit whose removes were read."""
    last_commit: int | None = None
    reason: str
    """One sentence: how it was found, or why nothing goes."""
    notes: tuple[str, ...] = ()

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would delete nothing."""
        return not self.files and not self.directories
