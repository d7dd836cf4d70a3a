"""The health of a table as a record: flat and small, whatever the size of the table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from delta_maintenance.operations.core.record import Instant, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBucket(Record):
    """Live files whose sizes are from `from_bytes` to less than twice that."""

    from_bytes: int
    """A power of two; 0 for empty files."""
    files: int
    bytes: int


LogFilesKind = Literal[
    "commits",
    "checkpoints",
    "sidecars",
    "compactions",
    "checksums",
    "staged-commits",
    "hints",
    "temporary-files",
    "others",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFiles(Record):
    """Files of the log of one kind."""

    kind: LogFilesKind
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPoint(Record):
    """One version in the pictures of a log over time."""

    version: int
    timestamp: Instant
    bytes: int
    """Of the commit."""
    operation: str | None
    """The name that its writer gives; None if there is none, or if the commit was not read."""
    is_checkpoint: bool
    """Whether a complete checkpoint of the version is there."""
    is_compaction: bool
    """Whether a log compaction ends with the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSeen(Record):
    """A maintenance operation that the log shows."""

    operation: str
    """As its writer calls it, such as `VACUUM END`."""
    version: int
    timestamp: Instant
    result: str | None = None
    """Its status, where it has one, such as `COMPLETED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Record):
    """Operations that this release does not support for a table of this protocol."""

    operation: str
    """`checkpoint`, `compact-log`, `clean-log`, `vacuum`, `commit` or `change-metadata`."""
    problem: str
    """One line, with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth(Record):
    """One version of a table, and its log as listed."""

    table: str
    table_id: str | None
    measured_at: Instant
    version: int
    timestamp: Instant | None

    commits_since_checkpoint: int
    bytes_since_checkpoint: int
    oldest_commit_since_checkpoint: Instant | None
    checkpoint_version: int | None
    checkpoint_kind: str | None
    """`classic`, `multi-part`, `v2-classic`, `v2-json` or `v2-parquet`."""
    checkpoint_at: Instant | None
    checkpoint_bytes: int
    """With its sidecars."""
    files_to_open: int
    """Files of the log that a reader of this version reads."""
    bytes_to_open: int
    oldest_version: int | None
    """The oldest commit that is retained."""

    log_files: tuple[LogFiles, ...]
    log_bytes: int
    expired_log_files: int
    """Files of the log past the log retention, judged by names and times."""
    expired_log_bytes: int

    num_files: int
    total_bytes: int
    small_files: int
    """Smaller than `small_file_bytes`."""
    small_file_bytes: int
    small_file_share: float
    """Of the live files, 0 where there are none."""
    file_sizes: tuple[SizeBucket, ...]
    """By ascending size; empty buckets are left out."""

    tombstones: int
    expired_tombstones: int
    """Removed so long ago that the retention no longer protects their files."""
    reclaimable_files: int
    """Files that a vacuum may delete and that the last known vacuum could not. Only files with a
    tombstone in the log count: checkpoints omit expired tombstones."""
    reclaimable_bytes: int
    """Of those whose tombstones vouch for a size."""

    files_with_deletion_vector: int
    deletion_vector_share: float
    """Of the live files."""
    deleted_rows: int
    rows: int | None
    """Physical rows, including deleted rows; None if a file has no row count, and for tables
    without deletion vectors, whose statistics are not read."""
    deleted_rows_share: float | None

    min_reader_version: int
    min_writer_version: int
    features: tuple[str, ...]
    """Features that the table supports, including implied ones."""
    refused: tuple[Refusal, ...]
    row_tracking: str
    """`unsupported`, `supported`, `enabled`, `suspended` or `contradictory`."""
    partition_columns: tuple[str, ...]
    clustering_columns: tuple[str, ...]
    log_retention: timedelta
    deleted_file_retention: timedelta
    properties: dict[str, str]
    """Those that are set."""

    commits: tuple[CommitPoint, ...] = ()
    """The newest commits, oldest first."""
    maintenance: tuple[MaintenanceSeen, ...] = ()
    """The last of each kind among these commits, newest first."""
    warnings: tuple[str, ...] = ()
