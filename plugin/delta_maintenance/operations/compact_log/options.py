"""Options, Plan and Result of `compact-log`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Document
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Record

Version = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLogOptions(Record):
    """Options of a log compaction."""

    commits_per_file: Annotated[
        int, AtLeast(2), Flag("number of commits per compaction, by default {default}")
    ] = 10
    """A reader opens one file per full window and every commit after the last window. Between two
    checkpoints that are n commits apart, that number is smallest for windows of about the square
    root of n commits, and most tables get a checkpoint every ten to a hundred commits."""
    first_version: Annotated[
        Version | None,
        Flag(
            "the first version to cover, by default the one after the newest checkpoint",
            name="--from",
        ),
    ] = None
    last_version: Annotated[
        Version | None,
        Flag("the last version that may be covered, by default the latest", name="--to"),
    ] = None
    partial: Annotated[
        bool,
        Flag(
            "let the last compaction cover fewer commits; otherwise, the last commits wait "
            "until there are enough of them"
        ),
    ] = False
    """The next run begins after it, because compactions never overlap."""
    engine: flags.Engine = "auto"
    auto_spark_bytes: int = 8 << 30
    """With `engine="auto"`: the bytes of commits in one window from which on Spark is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWindow(Record):
    """Adjacent commits for one compaction."""

    first_version: int
    last_version: int
    """Inclusive."""
    log_bytes: int
    """The size of its commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLogPlan(Document):
    """The planned compactions, and the reason."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: datetime
    windows: tuple[CompactionWindow, ...]
    """Empty if there is nothing to do."""
    reason: str
    """One sentence: the reason for these windows, or why there are none."""
    log_bytes: int
    """The size of all commits to be read."""
    engine: Literal["local", "spark"] = "local"
    notes: tuple[str, ...] = ()
    """Skipped commits, and the reason."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would write nothing."""
        return not self.windows


WindowStatus = Literal["written", "already-there", "empty", "gone", "refused", "differs"]
"""`empty`: no action remains after reconciliation, and an empty file would look like damage.
`gone`: a commit was deleted in the meantime. `refused`: the commits cannot be reconciled with
certainty, see `reason`. `differs`: another writer's compaction exists and contradicts its commits;
it was not touched, but readers that use it see a wrong table."""


FAILED: tuple[WindowStatus, ...] = ("refused", "differs")
"""Statuses that need the attention of a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedWindow(Record):
    """The result for one window."""

    first_version: int
    last_version: int
    status: WindowStatus
    path: str | None = None
    """The compaction, relative to the table root."""
    bytes_written: int = 0
    num_adds: int = 0
    num_removes: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLogResult(Document):
    """The written compactions."""

    table: str
    version: int
    status: Literal["written", "already-there", "nothing-to-do", "failed"]
    """`failed`: at least one window is refused or differs; see each window for its own status."""
    windows: tuple[CompactedWindow, ...] = ()
    bytes_written: int = 0
    engine: Literal["local", "spark"] = "local"
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[CompactedWindow, ...]:
        """The windows that need the attention of a person."""
        return tuple(window for window in self.windows if window.status in FAILED)
