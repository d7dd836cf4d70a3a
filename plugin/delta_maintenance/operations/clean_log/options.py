"""What a log clean-up is asked for, what it plans to delete, and what it deleted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import Instant, Record

LEAST_RETENTION = timedelta(hours=24)
"""A writer that has stalled for longer than the log goes back could write a version anew."""

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
"""In the order in which they are deleted: nothing goes before what rests on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup(Record):
    """Files of one kind that go."""

    kind: GroupKind
    count: int
    bytes: int
    first: str
    """The first and the last to go; names are relative to `_delta_log`."""
    last: str
    because: str
    kept: str | None
    """The neighbour behind the last, which stays."""
    kept_because: str | None
    names: tuple[str, ...]
    """All of them, in the order in which they go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLogOptions(Record):
    """How much history stays."""

    log_retention: Annotated[
        timedelta | None,
        Flag(
            metavar="I",
            help="how far the history is to go back, such as '60 days'; by default the table's "
            "delta.logRetentionDuration. Shorter than that, or than a day, takes both flags below",
        ),
    ] = None
    """By default the table's `delta.logRetentionDuration`; shorter takes both flags."""
    allow_short_retention: Annotated[
        bool,
        Flag(help="history that the table's own retention, or the last day, covers may go"),
    ] = False
    """First flag: history that the table's own retention, or the last day, covers may go."""
    no_other_writers: Annotated[
        bool, Flag(help="nobody writes to the table or reads its history meanwhile")
    ] = False
    """Second flag: nobody writes to the table or reads its history meanwhile."""
    as_of: Instant | None = None
    """An instant at which everything was as old as it counts: what has outlived the retention since
    then stays. For a plan that was approved a while ago."""
    to_the_minute: bool = False
    """Whether the cut-off instant is a full minute, for who waits for history to go, and not the
    midnight before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLogPlan(Record):
    """What `apply` will delete, why, and what stays beside it."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: datetime
    options: CleanLogOptions
    cut_off_instant: datetime | None
    """Midnight, UTC, or the minute where that was asked for. The version that was current then and
    all later ones stay."""
    cut_off_commit: int | None
    """The newest commit that is not newer than that instant."""
    oldest_version: int | None
    """The oldest version that opens afterwards: that of the cut-off checkpoint."""
    cut_off_checkpoint: str | None
    """Its first file, relative to `_delta_log`."""
    groups: tuple[FileGroup, ...]
    """Empty where there is nothing to do."""
    needs_classic_name: bool = False
    """Whether the cut-off checkpoint first gets an equal that clients without V2 can see."""
    stale_hint: int | None = None
    """The version in `_last_checkpoint` where its checkpoint is about to go; it is led here."""
    reason: str
    """One sentence: why the log is cut off there, or why nothing goes."""
    notes: tuple[str, ...] = ()

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would delete nothing."""
        return not self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup(Record):
    """What became of one group."""

    kind: GroupKind
    planned: int
    deleted: int
    """Files that are gone, those that somebody else deleted first included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLogResult(Record):
    """What was deleted."""

    table: str
    version: int
    status: Literal["cleaned", "partly", "nothing-to-do"]
    """`partly`: a file could not be deleted, and nothing after it was touched. Every version that
    is to stay opens; run again."""
    oldest_version: int | None = None
    """The oldest version that opens."""
    groups: tuple[CleanedGroup, ...] = ()
    failures: tuple[str, ...] = ()
    """The first files that may still be there, and why."""
    failed: int = 0
    """How many of them there are."""
    compatible_checkpoint: str | None = None
    """The classic-named equal of the cut-off checkpoint, where one was written."""
    hint_updated: bool = False
    notes: tuple[str, ...] = ()
