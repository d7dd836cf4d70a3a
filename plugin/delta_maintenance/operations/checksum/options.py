"""Options, Plan and Result of `checksum`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from delta_maintenance.operations.core.documents import Document
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumOptions(Record):
    """Options of version checksums."""

    checkpoints: Annotated[
        bool,
        Flag(
            "also write the checksum of each version with a checkpoint, which is the default; "
            "otherwise only that of the latest version"
        ),
    ] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumPlan(Document):
    """The planned checksums, and their reason."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: datetime
    versions: tuple[int, ...]
    """The versions that get a checksum, ascending; empty if there is nothing to do."""
    reason: str
    """One sentence: the reason for the versions, or why there is nothing to do."""
    log_bytes: int
    """The size of the log files of the latest version in bytes. Each checksum reads them."""
    notes: tuple[str, ...] = ()
    """The warnings of the snapshot."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would write nothing."""
        return not self.versions


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOutcome(Record):
    """The outcome for one version."""

    version: int
    status: Literal["written", "already-there", "gone"]
    """`gone`: the log of the version was cleaned up in the meantime."""
    path: str | None = None
    """The path of the checksum, relative to the table root."""
    bytes_written: int = 0
    num_files: int = 0
    total_size: int = 0
    """The size of the live data files in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumResult(Document):
    """The written checksums."""

    table: str
    version: int
    status: Literal["written", "already-there", "nothing-to-do"]
    """`already-there`: other writers wrote all of them first."""
    versions: tuple[VersionOutcome, ...] = ()
    bytes_written: int = 0
    notes: tuple[str, ...] = ()
