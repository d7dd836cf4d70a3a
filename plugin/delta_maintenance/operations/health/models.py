"""The health of a table as a record: flat and small, whatever the size of the table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.rendering import Shown
from delta_maintenance.operations.health.facts import health_facts, health_heading


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBucket(Record):
    """Live files whose sizes are at least `from_bytes` and less than twice that."""

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
    """One version in the charts of a log over time."""

    version: int
    timestamp: Instant
    bytes: int
    """The size of the commit."""
    operation: str | None
    """The name of the operation; None if its writer did not record it, or if the commit was not
    read.
    """
    is_checkpoint: bool
    """Whether a complete checkpoint of the version exists."""
    is_compaction: bool
    """Whether a log compaction ends with the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSeen(Record):
    """A maintenance operation recorded in the log."""

    operation: str
    """The name given by its writer, such as `VACUUM END`."""
    version: int
    timestamp: Instant
    result: str | None = None
    """Its recorded status, such as `COMPLETED`, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Record):
    """An operation that this release does not support for the table's protocol."""

    operation: str
    """`checkpoint`, `compact-log`, `clean-log`, `vacuum`, `commit` or `change-metadata`."""
    problem: str
    """One line, with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth(Shown, Record):
    """One version of a table, and the listing of its log."""

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
    """Including sidecars."""
    files_to_open: int
    """The number of log files that a reader of this version opens."""
    bytes_to_open: int
    oldest_version: int | None
    """The oldest retained commit."""

    log_files: tuple[LogFiles, ...]
    log_bytes: int
    expired_log_files: int
    """Files of the log past the log retention, judged by names and times."""
    expired_log_bytes: int

    num_files: int
    total_bytes: int
    small_files: int
    """Files smaller than `small_file_bytes`."""
    small_file_bytes: int
    small_file_share: float
    """Their share of the live files, 0 without files."""
    file_sizes: tuple[SizeBucket, ...]
    """By ascending size; empty buckets are omitted."""

    tombstones: int
    expired_tombstones: int
    """Tombstones whose retention has ended, so that they no longer protect their files."""
    reclaimable_files: int
    """Files that a vacuum may delete and that the last known vacuum could not. Only files with a
    tombstone in the log count: checkpoints omit expired tombstones."""
    reclaimable_bytes: int
    """The size of those files whose tombstones contain a size."""

    files_with_deletion_vector: int
    deletion_vector_share: float
    """The share of live files with a deletion vector."""
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
    """The properties that are set."""

    checksum_version: int | None = None
    """The version of the checksum from which the live files were computed, together with later
    commits; None if the files were counted.

    With a checksum, files below 8 KiB form one size bucket.
    """
    commits: tuple[CommitPoint, ...] = ()
    """The newest commits, oldest first."""
    maintenance: tuple[MaintenanceSeen, ...] = ()
    """The last of each kind among these commits, newest first."""
    warnings: tuple[str, ...] = ()

    def heading(self) -> str:
        return health_heading(self)

    def facts(self) -> Facts:
        return health_facts(self)
