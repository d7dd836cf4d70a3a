"""The list of tables: filters, order, pages and counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from delta_maintenance.operations.core.registry import policy_operations
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance_airflow.health_page.anomalies import is_named
from delta_maintenance_airflow.health_page.rows import STATUSES, RowGroup, TableRow, group_by_cause

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuery:
    """The filter and order of the rows."""

    text: str = ""
    """Each word must be in the name, the address, the owner, a tag or a table feature."""
    status: str = ""
    anomaly: str = ""
    """Only tables with the anomaly of this key, or in the tier of this name."""
    cause: str = ""
    """Only tables that fail for this reason; see `TableRow.cause`."""
    operation: str = ""
    """Only rows with this operation due, blocked, deferred or waiting for an approval."""
    left: bool = False
    """Only tables that are no longer in the policy; by default they are excluded."""
    sort: str = "status"
    descending: bool = False
    further: bool = False
    """Whether to show all columns."""
    page: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage:
    """Some of the rows, by the reasons of failures, and totals over all of them."""

    groups: tuple[RowGroup, ...]
    matching: int
    total: int
    number: int
    """The number of this page, from 1."""
    pages: int
    counts: dict[str, int]
    """The number of all rows by status."""
    operations: dict[str, int]
    """The number of all rows by such operation, in the order in which operations run."""
    left: int = 0
    """The number of tables that are no longer in the policy."""


def select(rows: Sequence[TableRow], query: TableQuery) -> TablePage:
    """The page of rows for a query."""
    left_policy = [row for row in rows if not row.in_policy]
    rows = _listed_rows(rows, query)
    matching = matching_rows(rows, query)
    # A group has one place, which only the order by status gives it.
    alone = query.cause or query.sort != "status"
    groups = tuple(RowGroup(rows=(row,)) for row in matching) if alone else group_by_cause(matching)
    pages = max(1, -(-len(groups) // PAGE_SIZE))
    number = min(max(1, query.page), pages)
    pending = [_pending(row) for row in rows]
    return TablePage(
        groups=groups[(number - 1) * PAGE_SIZE : number * PAGE_SIZE],
        matching=len(matching),
        total=len(rows),
        number=number,
        pages=pages,
        counts={status: sum(row.status == status for row in rows) for status in STATUSES},
        operations={
            record.name: sum(record.name in operations for operations in pending)
            for record in policy_operations()
        },
        left=len(left_policy),
    )


def matching_rows(rows: Sequence[TableRow], query: TableQuery) -> list[TableRow]:
    """All rows for a query, in its order."""
    return _sort_rows([row for row in _listed_rows(rows, query) if _matches(row, query)], query)


def _listed_rows(rows: Sequence[TableRow], query: TableQuery) -> list[TableRow]:
    return [row for row in rows if row.in_policy is not query.left]


def _pending(row: TableRow) -> set[str]:
    return {*row.due, *row.to_check, *row.waiting, *row.will_ask, *row.held_back, *row.deferred}


def _matches(row: TableRow, query: TableQuery) -> bool:
    if query.status and row.status != query.status:
        return False
    if query.cause and row.cause != query.cause:
        return False
    if query.operation and query.operation not in _pending(row):
        return False
    if query.anomaly and (row.is_pattern or not is_named(row, query.anomaly)):
        return False
    return has_words(row, query.text)


def has_words(row: TableRow, text: str) -> bool:
    """Whether each word is in the name, the address, the owner, a tag or a table feature."""
    words = text.casefold().split()
    if not words:
        return True
    features = row.health.features if row.health is not None else ()
    texts = (row.name, row.uri or "", row.owner or "", *row.tags, *features)
    hay = "\n".join(texts).casefold()
    return all(word in hay for word in words)


def _sort_rows(rows: list[TableRow], query: TableQuery) -> list[TableRow]:
    """Sorts the rows; rows without a value come last in both directions."""
    key = COLUMNS.get(query.sort, COLUMNS["status"])
    rows = sorted(rows, key=lambda row: row.name.casefold())
    valued = [(value, row) for row in rows if (value := key(row)) is not None]
    valued.sort(key=lambda pair: pair[0], reverse=query.descending)
    return [row for _, row in valued] + [row for row in rows if key(row) is None]


def _of_health(key: Callable[[TableHealth], Any]) -> Callable[[TableRow], Any]:
    return lambda row: key(row.health) if row.health is not None else None


def _maintained_at(row: TableRow) -> datetime | None:
    maintenance = row.last_maintenance
    return maintenance.at if maintenance is not None else None


FURTHER = ("version", "log-bytes", "checkpoint-kind", "tombstones", "deletion-vectors", "protocol")
"""The columns that are only shown on demand, because all of them are wider than most windows."""
COLUMNS: dict[str, Callable[[TableRow], Any]] = {
    "name": lambda row: row.name.casefold(),
    # Failed patterns first, because each stands for many tables.
    "status": lambda row: (STATUSES.index(row.status), not row.is_pattern),
    "version": _of_health(lambda health: health.version),
    "commits": _of_health(lambda health: health.commits_since_checkpoint),
    "log-bytes": _of_health(lambda health: health.bytes_since_checkpoint),
    "checkpoint-kind": _of_health(lambda health: health.checkpoint_kind),
    "checkpoint-at": _of_health(lambda health: health.checkpoint_at),
    "files": _of_health(lambda health: health.num_files),
    "small-files": _of_health(lambda health: health.small_file_share),
    "tombstones": _of_health(lambda health: health.tombstones),
    "reclaimable": _of_health(lambda health: health.reclaimable_bytes),
    "deletion-vectors": _of_health(lambda health: health.deletion_vector_share),
    "protocol": _of_health(
        lambda health: (health.min_reader_version, health.min_writer_version, health.features)
    ),
    "held": lambda row: row.held_bytes if row.held else None,
    "maintained": _maintained_at,
    "assessed": lambda row: row.assessment.assessed_at if row.assessment is not None else None,
}
"""The columns by which rows can be sorted."""
ORDERS = (
    ("status", "status"),
    ("name", "name"),
    ("commits", "commits to replay"),
    ("files", "files"),
    ("reclaimable", "bytes to reclaim"),
    ("maintained", "last maintenance"),
    ("assessed", "assessment"),
)
"""The orders that a phone offers, whose list has no headings to click on."""
