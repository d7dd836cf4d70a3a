"""The health of a table as a record, flat and small whatever the size of the table, and its facts
for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations.core.documents import Shown
from delta_maintenance.operations.core.facts import Facts, count_text, instant_text, size_text
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.fsck import Finding
from delta_maintenance.operations.holds.models import HeldBack, KeptVersion

_WIDTH = 40
"""The number of characters of the longest bar."""
_DAYS = 14
BACKLOG_COMMITS = 8
"""The number of commits not reported as published from which on a backlog is a warning."""
MOST_UNREPORTED = 10
"""The number of them at which Unity Catalog refuses further commits."""


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
class SparkCommit(Record):
    """A commit of Delta Spark to a table on S3."""

    version: int
    timestamp: Instant
    engine: str
    """The releases of Spark and Delta, as in the log."""
    is_conditional: bool
    """Whether it has the mark of our log store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFiles(Record):
    """Files that only older versions need, and that a vacuum may delete from one day on."""

    day: str
    """The day in UTC, such as 2026-11-27."""
    is_last: bool = False
    """Whether later days count, too."""
    files: int
    bytes: int
    """Of files whose tombstones state a reliable size."""


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
class FileCheck(Record):
    """The last question to the store for a sample of the files, and for the newest ones."""

    version: int
    asked: int
    """The number of data files, and of files of deletion vectors, for which the store answered."""
    outside: int = 0
    """The number of chosen files outside the table's root, for which no store was asked."""
    findings: tuple[Finding, ...] = ()
    """The first missing files, and those of another size than the log states, as in fsck."""
    warnings: tuple[str, ...] = ()
    """What the store refused."""


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
    commits_a_day: float = 0.0
    """New versions a day, from the newest commits; 0 if they are fewer than two."""
    maintenance: tuple[MaintenanceSeen, ...] = ()
    """The last of each kind among these commits, newest first."""
    spark_commits: tuple[SparkCommit, ...] = ()
    """On S3: the newest commits of Delta Spark, at most ten, newest first."""
    old_files: tuple[OldFiles, ...] = ()
    """What time travel costs: the files of tombstones within the retention of a vacuum, by the day
    on which it ends. Files whose tombstone has a deletion vector may be omitted."""
    unpublished_commits: int | None = None
    """Commits that the catalog of a catalog-managed table ratified and that are not published yet;
    None for other tables, and if the table was opened without its catalog."""
    unreported_commits: int | None = None
    """Commits that the catalog does not know to be published, and counts; None as above."""
    oldest_unreported_commit: Instant | None = None
    """The in-commit timestamp of the oldest of them; None if there is none."""
    kept_versions: tuple[KeptVersion, ...] = ()
    """The kept versions in the log, including those that have ended."""
    file_check: FileCheck | None = None
    """None in the documents of older releases."""
    warnings: tuple[str, ...] = ()

    @property
    def unsafe_commits(self) -> tuple[str, ...]:
        """A sentence if Delta Spark has committed without our log store since its first commit with
        it."""
        first = min((c.version for c in self.spark_commits if c.is_conditional), default=-1)
        unsafe = [c for c in self.spark_commits if c.version > first and not c.is_conditional]
        return tuple(
            f"Delta Spark committed version {commit.version} without our log store "
            f"({_time(commit.timestamp)}, {commit.engine}), so it can overwrite commits of others: "
            "set it for every Spark application that writes the table, or set other_writers to "
            "spark (docs/safety/other-writers.md)"
            for commit in unsafe[:1]
        )

    @property
    def damage(self) -> CorruptTableError | None:
        """The error for the first missing file; None if the store had all files."""
        for finding in self.file_check.findings if self.file_check is not None else ():
            return CorruptTableError(
                finding.problem,
                table=self.table,
                version=finding.version,
                file=finding.path,
                remedy=finding.remedy,
            )
        return None

    def heading(self) -> str:
        """The title: the address and the version."""
        return f"{self.table}, version {self.version} of {_time(self.timestamp)}"

    def facts(self) -> Facts:
        """The log, the files, the protocol, and the maintenance that the log records."""
        return {
            **_log(self),
            **_files(self),
            **_protocol(self),
            "maintenance": [
                f"{_time(done.timestamp)} {done.operation} in version {done.version}"
                + (f": {done.result}" if done.result else "")
                for done in self.maintenance
            ],
            "held by": [
                str(HeldBack.of_version(kept_version))
                for kept_version in self.kept_versions
                if kept_version.until is None or kept_version.until > self.measured_at
            ],
            "other writers": self.unsafe_commits,
            "commits a day": list(_commits_by_day(self)),
        }


def _log(health: TableHealth) -> Facts:
    checkpoint, backlog, expired = "none", None, None
    if health.checkpoint_version is not None:
        size, at = size_text(health.checkpoint_bytes), _time(health.checkpoint_at)
        kind = health.checkpoint_kind
        checkpoint = f"version {health.checkpoint_version}: {kind}, {size}, of {at}"
    if health.unpublished_commits is not None:
        backlog = (
            f"{count_text(health.unpublished_commits, 'commit')} not published, "
            f"{health.unreported_commits or 0} not reported to the catalog as published, of "
            f"{MOST_UNREPORTED} that it accepts"
        )
    if health.expired_log_files:
        expired = _amount(health.expired_log_files, "file", health.expired_log_bytes)
    return {
        "to replay": _amount(
            health.commits_since_checkpoint, "commit", health.bytes_since_checkpoint
        ),
        "checkpoint": checkpoint,
        "to open": _amount(health.files_to_open, "file", health.bytes_to_open),
        "log": [
            f"{kind.kind.replace('-', ' ')}: {kind.files:,} ({size_text(kind.bytes)})"
            for kind in health.log_files
        ],
        "publication backlog": backlog,
        "behind its retention": expired,
    }


def _amount(number: int, noun: str, size: int) -> str:
    return f"{count_text(number, noun)} ({size_text(size)})"


def _files(health: TableHealth) -> Facts:
    largest = max((bucket.files for bucket in health.file_sizes), default=1)
    deleted_share, vectors = health.deleted_rows_share, None
    if health.files_with_deletion_vector:
        vectors = (
            f"{health.files_with_deletion_vector:,} ({health.deletion_vector_share:.0%} of the "
            f"files), {health.deleted_rows:,} rows deleted"
            + (f" ({deleted_share:.1%})" if deleted_share is not None else "")
        )
    return {
        "files": f"{health.num_files:,} ({size_text(health.total_bytes)})",
        "small files": f"{health.small_files:,} below {size_text(health.small_file_bytes)} "
        f"({health.small_file_share:.0%})",
        "sizes from": [
            f"{size_text(bucket.from_bytes):>9} {_bar(bucket.files, largest)} {bucket.files:,}"
            for bucket in health.file_sizes
        ],
        "tombstones": f"{health.tombstones:,}, of them {health.expired_tombstones:,} expired",
        "to vacuum": f"{count_text(health.reclaimable_files, 'file')}, at least "
        f"{size_text(health.reclaimable_bytes)}",
        "time travel": _old_text(health.old_files) if health.old_files else None,
        "of them until": [
            f"{files.day}{' and later' if files.is_last else ''}: {_old_text([files])}"
            for files in health.old_files
        ],
        "deletion vectors": vectors,
        **_stored(health.file_check),
    }


def _stored(check: FileCheck | None) -> Facts:
    if check is None:
        return {}
    outside = f", {check.outside:,} outside the table were not" if check.outside else ""
    return {
        "looked for": f"{count_text(check.asked, 'file')} of version {check.version}{outside}",
        "missing": [f"{finding.path}: {finding.problem}" for finding in check.findings],
    }


def _old_text(old_files: Sequence[OldFiles]) -> str:
    number, size = sum(files.files for files in old_files), sum(files.bytes for files in old_files)
    return f"{count_text(number, 'file')}, at least {size_text(size)}"


def _protocol(health: TableHealth) -> Facts:
    return {
        "protocol": f"reader {health.min_reader_version}, writer {health.min_writer_version}",
        "features": ", ".join(health.features),
        "not supported": [f"{refusal.operation}: {refusal.problem}" for refusal in health.refused],
        "row tracking": health.row_tracking,
        "partitioned by": ", ".join(health.partition_columns),
        "clustered by": ", ".join(health.clustering_columns),
        "log retention": health.log_retention,
        "file retention": health.deleted_file_retention,
        "properties": health.properties,
    }


def _commits_by_day(health: TableHealth) -> Iterator[str]:
    days: dict[str, int] = {}
    for point in health.commits:
        day = f"{point.timestamp:%Y-%m-%d}"
        days[day] = days.get(day, 0) + 1
    newest_days = sorted(days)[-_DAYS:]
    largest = max((days[day] for day in newest_days), default=1)
    cut_day = None
    if health.commits and health.commits[0].version > (health.oldest_version or 0):
        cut_day = min(days)
    for day in newest_days:
        counted = f"{days[day]:,}"
        if day == cut_day:
            counted = f"at least {counted} (only the newest {len(health.commits):,} are counted)"
        yield f"{day} {_bar(days[day], largest)} {counted}"


def _bar(number: int, largest: int) -> str:
    return "█" * max(1, round(number / largest * _WIDTH))


def _time(instant: datetime | None) -> str:
    return instant_text(instant) or "unknown"
