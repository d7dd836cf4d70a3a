"""Options, Plan and Result of `clean-log`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from delta_maintenance.operations.core.documents import Document
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.holds.held_back import HeldBack
from delta_maintenance.operations.holds.options import Holders, LastRead, Streams

LEAST_RETENTION = timedelta(hours=24)
"""A writer that stalled for longer than the log retention could write an existing version again."""

GroupKind = Literal[
    "compactions",
    "commits",
    "checksums",
    "checkpoints",
    "staged-commits",
    "hadoop-checksums",
    "temporary-files",
    "sidecars",
]
"""In the order of deletion: a file is deleted after all files that depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup(Record):
    """Files of one kind to delete."""

    kind: GroupKind
    count: int
    bytes: int
    first: str
    """The first and the last file to be deleted; names are relative to `_delta_log`."""
    last: str
    because: str
    kept: str | None
    """The file after the last one, which is kept."""
    kept_because: str | None
    names: tuple[str, ...]
    """All names, in the order of deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLogOptions(Record):
    """How much history is kept."""

    log_retention: Annotated[
        timedelta | None,
        Flag(
            "how long history is kept, such as '60 days'; by default the table's "
            "delta.logRetentionDuration. A shorter time than that, or than a day, requires "
            "both flags below",
            metavar="I",
        ),
    ] = None
    allow_short_retention: Annotated[
        bool, Flag("allow deleting history that the table's own retention, or the last day, covers")
    ] = False
    no_other_writers: Annotated[
        bool, Flag("confirm that no client writes to the table or reads its history during the run")
    ] = False
    as_of: Instant | None = None
    """The instant as of which ages are computed: files whose retention ended later are kept. Used
    to apply a plan that was approved some time ago.
    """
    streams: Streams = ()
    last_read: LastRead = ()
    holders: Holders = Holders()
    """What else holds versions: kept versions and readers. The kept versions in the log always
    count."""
    to_the_minute: bool = False
    """Whether the log retention boundary is rounded to the minute instead of to midnight, for
    callers that wait for history to expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLogPlan(Document):
    """The files to delete, the reason, and the files that are kept."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: datetime
    options: CleanLogOptions
    cut_off_instant: datetime | None
    """Midnight UTC, or the full minute if requested. The version that was current then and all
    later versions are kept."""
    cut_off_commit: int | None
    """The newest commit that is not newer than that instant."""
    oldest_version: int | None
    """The oldest version that can be opened afterwards: that of the cut-off checkpoint."""
    cut_off_checkpoint: str | None
    """The first file of the checkpoint, relative to `_delta_log`."""
    held: tuple[HeldBack, ...] = ()
    """The files of the log that would be deleted if their holders did not need their versions."""
    groups: tuple[FileGroup, ...]
    """Empty if there is nothing to do."""
    needs_classic_name: bool = False
    """Whether the cut-off checkpoint is first copied to a name that clients without V2 can see."""
    stale_hint: int | None = None
    """The version in `_last_checkpoint` if its checkpoint will be deleted; the hint is then
    replaced.
    """
    reason: str
    """One sentence: the reason for the boundary, or why nothing is deleted."""
    notes: tuple[str, ...] = ()

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would delete nothing."""
        return not self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup(Record):
    """The result for one group."""

    kind: GroupKind
    planned: int
    deleted: int
    """Deleted files, including those that another process deleted first."""
    bytes: int = 0
    """Their bytes; 0 if some of the planned files are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLogResult(Document):
    """The deleted files."""

    table: str
    version: int
    status: Literal["cleaned", "partly", "nothing-to-do"]
    """`partly`: a file could not be deleted, and later files were not touched. Every retained
    version can be opened; run again."""
    oldest_version: int | None = None
    """The oldest version that can be opened."""
    held: tuple[HeldBack, ...] = ()
    """The files that would have been deleted if their holders did not need their versions."""
    groups: tuple[CleanedGroup, ...] = ()
    failures: tuple[str, ...] = ()
    """The first files that may still exist, with reasons."""
    failed: int = 0
    """The number of files that may still exist."""
    compatible_checkpoint: str | None = None
    """The classic-named copy of the cut-off checkpoint, if one was written."""
    hint_updated: bool = False
    notes: tuple[str, ...] = ()
