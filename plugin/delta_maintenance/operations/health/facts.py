"""The health of a table as facts for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from delta_maintenance.operations.core.facts import Facts, count_text, instant_text, size_text

if TYPE_CHECKING:
    from delta_maintenance.operations.health.models import TableHealth

_WIDTH = 40
"""The number of characters of the longest bar."""
_DAYS = 14


def health_heading(health: TableHealth) -> str:
    """The title: the address and the version."""
    return f"{health.table}, version {health.version} of {_time(health.timestamp)}"


def health_facts(health: TableHealth) -> Facts:
    """The log, the files, the protocol, and the maintenance that the log records."""
    return {
        **dict(_log(health)),
        **dict(_files(health)),
        **dict(_protocol(health)),
        "maintenance": [
            f"{_time(seen.timestamp)} {seen.operation} in version {seen.version}"
            + (f": {seen.result}" if seen.result else "")
            for seen in health.maintenance
        ],
        "commits a day": list(_commits_by_day(health)),
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
