"""The health of a table as a record, flat and small whatever the size of the table, and its facts
for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from delta_maintenance.operations.core.documents import Shown
from delta_maintenance.operations.core.facts import Facts, count_text, instant_text, size_text
from delta_maintenance.operations.core.record import Instant, Record
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
    old_files: tuple[OldFiles, ...] = ()
    """What time travel costs: the files of tombstones within the retention of a vacuum, by the day
    on which it ends. Files whose tombstone has a deletion vector may be omitted."""
    unpublished_commits: int | None = None
    """Commits that the catalog of a catalog-managed table ratified and that are not published yet;
    None for other tables, and if the table was opened without its catalog."""
    unreported_commits: int | None = None
    """Commits that the catalog does not know to be published, and counts; None as above."""
    kept_versions: tuple[KeptVersion, ...] = ()
    """The kept versions in the log, including those that have ended."""
    warnings: tuple[str, ...] = ()

    def heading(self) -> str:
        """The title: the address and the version."""
        return f"{self.table}, version {self.version} of {_time(self.timestamp)}"

    def facts(self) -> Facts:
        """The log, the files, the protocol, and the maintenance that the log records."""
        return {
            **dict(_log(self)),
            **dict(_files(self)),
            **dict(_protocol(self)),
            "maintenance": [
                f"{_time(seen.timestamp)} {seen.operation} in version {seen.version}"
                + (f": {seen.result}" if seen.result else "")
                for seen in self.maintenance
            ],
            "held by": [
                str(HeldBack.of_version(each))
                for each in self.kept_versions
                if each.until is None or each.until > self.measured_at
            ],
            "commits a day": list(_commits_by_day(self)),
        }


def _log(health: TableHealth) -> Iterator[tuple[str, object]]:
    yield (
        "to replay",
        (
            f"{count_text(health.commits_since_checkpoint, 'commit')} "
            f"({size_text(health.bytes_since_checkpoint)})"
        ),
    )
    if health.checkpoint_version is None:
        yield "checkpoint", "none"
    else:
        yield (
            "checkpoint",
            (
                f"version {health.checkpoint_version}: {health.checkpoint_kind}, "
                f"{size_text(health.checkpoint_bytes)}, of {_time(health.checkpoint_at)}"
            ),
        )
    yield (
        "to open",
        (f"{count_text(health.files_to_open, 'file')} ({size_text(health.bytes_to_open)})"),
    )
    yield (
        "log",
        [
            f"{kind.kind.replace('-', ' ')}: {kind.files:,} ({size_text(kind.bytes)})"
            for kind in health.log_files
        ],
    )
    if health.unpublished_commits is not None:
        yield (
            "publication backlog",
            f"{count_text(health.unpublished_commits, 'commit')} not published, "
            f"{health.unreported_commits or 0} not reported to the catalog as published",
        )
    if health.expired_log_files:
        expired = count_text(health.expired_log_files, "file")
        yield "behind its retention", f"{expired} ({size_text(health.expired_log_bytes)})"


def _files(health: TableHealth) -> Iterator[tuple[str, object]]:
    yield "files", f"{health.num_files:,} ({size_text(health.total_bytes)})"
    yield (
        "small files",
        (
            f"{health.small_files:,} below {size_text(health.small_file_bytes)} "
            f"({health.small_file_share:.0%})"
        ),
    )
    most = max((bucket.files for bucket in health.file_sizes), default=1)
    yield (
        "sizes from",
        [
            f"{size_text(bucket.from_bytes):>9} {_bar(bucket.files, most)} {bucket.files:,}"
            for bucket in health.file_sizes
        ],
    )
    yield "tombstones", f"{health.tombstones:,}, of them {health.expired_tombstones:,} expired"
    yield (
        "to vacuum",
        (
            f"{count_text(health.reclaimable_files, 'file')}, at least "
            f"{size_text(health.reclaimable_bytes)}"
        ),
    )
    old = health.old_files
    yield "time travel", _old_text(old) if old else None
    yield "of them until", [f"{each.day}{_more(each)}: {_old_text([each])}" for each in old]
    if health.files_with_deletion_vector:
        share = health.deleted_rows_share
        yield (
            "deletion vectors",
            (
                f"{health.files_with_deletion_vector:,} ({health.deletion_vector_share:.0%} of the "
                f"files), {health.deleted_rows:,} rows deleted"
                + (f" ({share:.1%})" if share is not None else "")
            ),
        )


def _old_text(found: Sequence[OldFiles]) -> str:
    files, size = sum(each.files for each in found), sum(each.bytes for each in found)
    return f"{count_text(files, 'file')}, at least {size_text(size)}"


def _more(old: OldFiles) -> str:
    return " and later" if old.is_last else ""


def _protocol(health: TableHealth) -> Iterator[tuple[str, object]]:
    yield "protocol", f"reader {health.min_reader_version}, writer {health.min_writer_version}"
    yield "features", ", ".join(health.features)
    yield "not supported", [f"{each.operation}: {each.problem}" for each in health.refused]
    yield "row tracking", health.row_tracking
    yield "partitioned by", ", ".join(health.partition_columns)
    yield "clustered by", ", ".join(health.clustering_columns)
    yield "log retention", health.log_retention
    yield "file retention", health.deleted_file_retention
    yield "properties", health.properties


def _commits_by_day(health: TableHealth) -> Iterator[str]:
    days: dict[str, int] = {}
    for point in health.commits:
        day = f"{point.timestamp:%Y-%m-%d}"
        days[day] = days.get(day, 0) + 1
    shown = sorted(days)[-_DAYS:]
    most = max((days[day] for day in shown), default=1)
    for day in shown:
        yield f"{day} {_bar(days[day], most)} {days[day]:,}"


def _bar(number: int, most: int) -> str:
    return "█" * max(1, round(number / most * _WIDTH))


def _time(instant: datetime | None) -> str:
    return instant_text(instant) or "unknown"
