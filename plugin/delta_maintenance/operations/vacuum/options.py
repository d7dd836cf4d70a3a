"""Options and Plan of `vacuum`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Instant, Record
from delta_maintenance.table.commit.other_writers import OtherWriters

LEAST_RETENTION = timedelta(days=7)
"""A writer may need this long between writing its files and committing them."""

Mode = Literal["full", "lite", "inventory"]
Version = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions(Record):
    """Options of a vacuum."""

    mode: Annotated[
        Mode,
        Flag(
            help=(
                "full, the default, lists the table's folder; lite finds only files that the log "
                "records as removed; inventory reads a list made elsewhere"
            )
        ),
    ] = "full"
    """`full` lists the table's folder; `lite` finds only files that the log records as removed, and
    no files that never were in the table; `inventory` reads a list of the folder made elsewhere."""
    retention: Annotated[
        timedelta | None,
        Flag(
            metavar="I",
            help="for how long removed files stay, such as '30 days'; by default the table's "
            "delta.deletedFileRetentionDuration, but a week at least. Shorter takes both flags "
            "below",
        ),
    ] = None
    """For how long removed files stay; by default the table's `delta.deletedFileRetentionDuration`,
    but a week at least. Shorter takes both flags."""
    allow_short_retention: Annotated[
        bool, Flag(help="files that the table's own retention, or the last week, covers may go")
    ] = False
    """First flag: files that the table's retention, or the last week, covers may go."""
    no_other_writers: Annotated[
        bool, Flag(help="nobody writes to the table or reads older versions of it meanwhile")
    ] = False
    """Second flag: no client writes to the table or reads older versions of it in the meantime."""
    as_of: Instant | None = None
    """The instant at which ages are measured: files whose retention ended later are kept. For a
    plan that was approved some time ago."""
    keep_versions: Annotated[
        tuple[Version, ...],
        Flag(
            name="--keep-version",
            help="a version whose files are all kept, whatever its age; repeatable",
        ),
    ] = ()
    """Versions whose files are all kept, whatever their age."""
    inventory: Annotated[
        str | None,
        Flag(
            metavar="URI",
            help="for that mode: a Parquet file, a folder of them or a Delta table, with the "
            "columns path, length, isDir and modificationTime",
        ),
    ] = None
    """For that mode: a Parquet file, a folder of them or a Delta table, with the columns `path`,
    `length`, `isDir` and `modificationTime`."""
    foreign_files: Annotated[
        bool,
        Flag(help="files go too whose names are not those of Delta's files, such as a readme"),
    ] = False
    """Whether files go too whose names are not those of Delta's files."""
    allow_large_delete: Annotated[
        bool, Flag(help="more than 1,000 files may go that are more than half of all")
    ] = False
    """Whether more than 1,000 files may go that are more than half of all files, or bytes."""
    ignore_missing_files: Annotated[
        bool, Flag(help="go on where files of the table are not there")
    ] = False
    """Whether to go on where files of the table are not there."""
    log_commits: Annotated[
        bool | None,
        Flag(help="commit VACUUM START and VACUUM END; by default everywhere but on S3"),
    ] = None
    """Whether VACUUM START and VACUUM END are committed. By default as Delta Spark has it:
    everywhere but on S3."""
    other_writers: Annotated[
        OtherWriters | None,
        Flag(help="the other writers of a table on S3, required with --log-commits"),
    ] = None
    """The other writers of a table on S3, required for commits."""
    engine: flags.Engine = "auto"
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
    """The files to delete and to keep, with reasons. The survey has the exact list."""

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
    paths_digest: str = ""
    """A digest of the paths of these files, by which an approval covers exactly these files. Empty
    in plans of earlier releases, which are planned again before they are run."""
    groups: tuple[DeadGroup, ...]
    kept: tuple[KeptGroup, ...]
    listed: int
    """Examined files."""
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
    """One sentence: how the files were found, or why none are deleted."""
    notes: tuple[str, ...] = ()

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would delete nothing."""
        return not self.files and not self.directories


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult(Record):
    """The deleted files."""

    table: str
    version: int
    """The latest version that is known of, the run's own commits included."""
    status: Literal["vacuumed", "partly", "nothing-to-do"]
    """`partly`: something could not be deleted, or must not have been. See `failures`."""
    deleted: int = 0
    """Files that are gone, those that somebody else deleted first included."""
    bytes: int = 0
    directories: int = 0
    """Empty directories that are gone."""
    spared: int = 0
    """Files that came into use after the plan was made."""
    failures: tuple[str, ...] = ()
    """The first files that may still be there, and why."""
    failed: int = 0
    """How many of them there are."""
    stopped: str | None = None
    """Why it ended before the last file had its turn."""
    lost: tuple[str, ...] = ()
    """Files that another writer referred to again right after their deletion."""
    start_version: int | None = None
    """Of the commit VACUUM START."""
    end_version: int | None = None
    """Of the commit VACUUM END."""
    notes: tuple[str, ...] = ()
