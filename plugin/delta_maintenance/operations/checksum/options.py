"""What version checksums are asked for, what is planned, and what was written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumOptions(Record):
    """Which versions get a checksum."""

    checkpoints: Annotated[
        bool,
        Flag(
            help="write the checksum of each version with a checkpoint too, which is the default; "
            "without, of the latest version alone"
        ),
    ] = True
    """Whether versions that have a checkpoint get a checksum, and not the latest one alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumPlan(Record):
    """What `apply` will write, and why."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: datetime
    versions: tuple[int, ...]
    """Those without a checksum that get one, ascending. Empty where there is nothing to do."""
    reason: str
    """One sentence: why these versions, or why none."""
    log_bytes: int
    """Bytes of the log files of the latest version, which are read for each checksum."""
    notes: tuple[str, ...] = ()
    """What is left alone, and why."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would write nothing."""
        return not self.versions


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOutcome(Record):
    """What became of one version."""

    version: int
    status: Literal["written", "already-there", "gone"]
    """`gone`: the log of the version was cleaned up meanwhile."""
    path: str | None = None
    """The checksum, relative to the table root."""
    bytes_written: int = 0
    num_files: int = 0
    total_size: int = 0
    """Bytes of the live data files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumResult(Record):
    """What was written."""

    table: str
    version: int
    status: Literal["written", "already-there", "nothing-to-do"]
    """`already-there`: other writers were first with all of them."""
    versions: tuple[VersionOutcome, ...] = ()
    bytes_written: int = 0
    notes: tuple[str, ...] = ()
