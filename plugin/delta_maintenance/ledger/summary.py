"""Sums over the rows of a ledger, and their money, by the price list of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.ledger.table import LedgerTable
from delta_maintenance.operations.core.record import Record
from delta_maintenance.policies.definition.ledger import Prices

PRICED = (
    "requests_write",
    "requests_list",
    "requests_read",
    "requests_other",
    "requests_delete",
    "bytes_read",
    "cpu_seconds",
    "spark_task_seconds",
)
"""The columns that have a price."""
_GB = 1 << 30


def costs_of(rows: pa.Table, prices: Prices) -> pa.ChunkedArray:
    """Returns what each row cost. Values that nobody has counted cost nothing."""
    total: pa.ChunkedArray = pa.chunked_array([pa.nulls(len(rows), pa.float64()).fill_null(0.0)])
    for name, price in prices.by_column().items():
        units = pc.fill_null(rows[name].cast(pa.float64(), safe=False), 0.0)
        total = pc.add(total, pc.multiply(units, price))
    return total


def saved_a_month(freed_bytes: int, prices: Prices) -> float | None:
    """Returns what bytes that are no longer stored would cost a month; None without a price."""
    lowest = min(prices.gb_month.values(), default=None)
    return None if lowest is None else freed_bytes / _GB * lowest


GroupBy = Literal["table", "operation", "day", "owner"]
GROUPS: tuple[GroupBy, ...] = get_args(GroupBy)
_KEYS = {"table": "table_name", "operation": "operation", "owner": "owner"}
_SUMMED = ("bytes_deleted", "seconds", "cpu_seconds", "bytes_read", "bytes_written")
REQUESTS = ("requests_read", "requests_write", "requests_list", "requests_delete", "requests_other")
"""The columns that count requests."""
WAITING = ("deferred", "chosen")
"""The outcomes of rows about operations that did not run."""
_NEWEST = (
    "started_at",
    "table_name",
    "operation",
    "outcome",
    "done_by",
    "seconds",
    "bytes_deleted",
    "freed",
    "freed_at",
    "replay_bytes_before",
    "replay_bytes_after",
    "files_before",
    "files_after",
    "reason",
    "error",
    "approved_by",
)
_READ = tuple(dict.fromkeys((*_NEWEST, "owner", "bytes_freed", *_SUMMED, *REQUESTS, *PRICED)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSum(Record):
    """What the rows of one group have in common, and their sums."""

    group: str | None
    """The table, the operation, the owner or the day; None for rows without one."""
    operations: int
    """Rows: operations that ran, also those that failed."""
    failed: int
    files_merged: int
    """Fewer live files after the operations than before."""
    bytes_deleted: int
    bytes_freed: int
    """Those of them whose storage is no longer paid for."""
    replay_bytes_spared: int
    """Fewer bytes of log that readers open."""
    seconds: float
    cpu_seconds: float
    requests: int
    bytes_read: int
    bytes_written: int
    currency: str | None = None
    """Of `cost` and `saves_a_month`; None without a price list."""
    cost: float | None = None
    """What requests, received bytes and time cost."""
    saves_a_month: float | None = None
    """What storing the freed bytes would cost a month; None without a price for that."""


def sums(
    ledger: LedgerTable,
    *,
    since: datetime | None,
    by: GroupBy,
    now: datetime,
    prices: Prices | None = None,
) -> tuple[LedgerSum, ...]:
    """Returns the sums of each group, those with the most operations first; days in order.

    Bytes count as freed if they are freed `now`.
    `NotADeltaTableError` if there is no ledger.
    """
    rows = of_runs(_rows(ledger, since))
    key = pc.strftime(rows["started_at"], "%Y-%m-%d") if by == "day" else rows[_KEYS[by]]
    table = pa.table(
        {
            "group": key,
            "failed": pc.equal(pc.fill_null(rows["outcome"], ""), "failed").cast(pa.int64()),
            "files_merged": _less(rows, "files"),
            "replay_bytes_spared": _less(rows, "replay_bytes"),
            "requests": total_of(rows, REQUESTS),
            "bytes_freed": freed_until(rows, now),
            **({} if prices is None else {"cost": costs_of(rows, prices)}),
            **{name: pc.fill_null(rows[name], 0) for name in _SUMMED},
        }
    )
    names = [name for name in table.column_names if name != "group"]
    grouped = table.group_by("group").aggregate(
        [([], "count_all"), *((name, "sum") for name in names)]
    )
    groups = [
        LedgerSum(
            group=row["group"],
            operations=row["count_all"],
            currency=None if prices is None else prices.currency,
            saves_a_month=(
                None if prices is None else saved_a_month(row["bytes_freed_sum"], prices)
            ),
            **{name: row[f"{name}_sum"] for name in names},
        )
        for row in grouped.to_pylist()
    ]
    if by == "day":
        return tuple(sorted(groups, key=lambda each: each.group or ""))
    return tuple(sorted(groups, key=lambda each: (-each.operations, each.group or "")))


def newest(
    ledger: LedgerTable,
    *,
    since: datetime | None,
    most: int,
    table: str | None = None,
    prices: Prices | None = None,
) -> pa.Table:
    """Returns the newest rows, the newest first: of all tables, or of the `table` with a name.

    With `prices`, they have a column `cost`.
    """
    all_rows = _rows(ledger, since)
    if table is not None:
        all_rows = all_rows.filter(pc.equal(all_rows["table_name"], table))
    rows = all_rows.select(_NEWEST)
    if prices is not None:
        rows = rows.append_column("cost", costs_of(all_rows, prices))
    order = pc.sort_indices(rows, sort_keys=[("started_at", "descending")])
    return rows.take(order[:most])


def _rows(ledger: LedgerTable, since: datetime | None) -> pa.Table:
    month = None if since is None else f"{since:%Y-%m}"
    rows = ledger.read(_READ, since_month=month)
    if since is None:
        return rows
    at = pa.scalar(since, rows.schema.field("started_at").type)
    return rows.filter(pc.greater_equal(rows["started_at"], at))


def of_runs(rows: pa.Table) -> pa.Table:
    """Returns the rows of operations that ran."""
    return rows.filter(pc.invert(pc.is_in(rows["outcome"], pa.array(WAITING))))


def freed_until(rows: pa.Table, now: datetime) -> pa.ChunkedArray:
    """Returns the bytes that each deletion has freed until now."""
    at = rows["freed_at"]
    over = pc.fill_null(pc.less_equal(at, pa.scalar(now, at.type)), False)
    return pc.fill_null(pc.if_else(over, rows["bytes_deleted"], rows["bytes_freed"]), 0)


def _less(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """How much less there was after each operation; 0 if it was more, or is unknown."""
    less = pc.subtract(rows[f"{name}_before"], rows[f"{name}_after"])
    return pc.max_element_wise(pc.fill_null(less, 0), 0)


def total_of(rows: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Returns the sums of these columns; values that nobody has counted are 0."""
    total = pc.fill_null(rows[names[0]], 0)
    for name in names[1:]:
        total = pc.add(total, pc.fill_null(rows[name], 0))
    return total
