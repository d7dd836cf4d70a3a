"""What a log compaction is asked for, what it plans to write, and what it wrote."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Record

Version = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLogOptions(Record):
    """What to compact."""

    commits_per_file: Annotated[
        int,
        AtLeast(2),
        Flag(help="commits that one compaction stands for, by default {default}"),
    ] = 10
    """How many commits one compaction stands for.

    A reader opens one file per full window and every commit behind the last of them. Between two
    checkpoints that are n commits apart this is least for about the square root of n, and most
    tables are checkpointed every ten to a hundred commits.
    """
    first_version: Annotated[
        Version | None,
        Flag(
            name="--from",
            help="the first version to cover, by default the one after the newest checkpoint",
        ),
    ] = None
    """Where the windows begin; by default right after the newest checkpoint."""
    last_version: Annotated[
        Version | None,
        Flag(name="--to", help="the last version that may be covered, by default the latest"),
    ] = None
    """The newest version that may be covered; by default the latest."""
    partial: Annotated[
        bool,
        Flag(
            help="let the last compaction stand for fewer commits; without, the last ones wait "
            "until there are enough of them"
        ),
    ] = False
    """Whether the last window may be smaller than asked for. The next run then begins behind it,
    for compactions never overlap."""
    engine: flags.Engine = "auto"
    auto_spark_bytes: int = 8 << 30
    """With `engine="auto"`: from this many bytes of commits in one window on, the work goes to
    Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWindow(Record):
    """Adjacent commits that one compaction is to stand for."""

    first_version: int
    last_version: int
    """Inclusive."""
    log_bytes: int
    """Of its commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLogPlan(Record):
    """What `apply` will write, and why."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: datetime
    windows: tuple[CompactionWindow, ...]
    """Empty where there is nothing to do."""
    reason: str
    """One sentence: why these windows, or why none."""
    log_bytes: int
    """Of all commits to be read."""
    engine: Literal["local", "spark"] = "local"
    notes: tuple[str, ...] = ()
    """What is left alone, and why."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would write nothing."""
        return not self.windows


WindowStatus = Literal["written", "already-there", "empty", "gone", "refused", "differs"]
"""`empty`: none of its actions stands, and an empty file would pass for damage. `gone`: a commit
was cleaned up meanwhile. `refused`: its commits cannot be reconciled without a doubt, see `reason`.
`differs`: somebody else's compaction is there and does something else than its commits do; it was
not touched, and whoever reads it gets a wrong table."""


FAILED: tuple[WindowStatus, ...] = ("refused", "differs")
"""Those that need somebody to look at them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedWindow(Record):
    """What became of one window."""

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
class CompactLogResult(Record):
    """What was written."""

    table: str
    version: int
    status: Literal["written", "already-there", "nothing-to-do", "failed"]
    """`failed`: at least one window is refused or differs; the others are as they say."""
    windows: tuple[CompactedWindow, ...] = ()
    bytes_written: int = 0
    engine: Literal["local", "spark"] = "local"
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[CompactedWindow, ...]:
        """The windows that need somebody to look at them."""
        return tuple(window for window in self.windows if window.status in FAILED)
