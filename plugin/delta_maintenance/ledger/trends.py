"""The last 90 days of a ledger in bounded memory: sums by table and day, and the newest rows.

Only the partitions of these days are read, part by part. What is kept does not grow with the
number of rows: at most one row of sums for each table and day, and `MOST_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.address import identity_of
from delta_maintenance.ledger.rows import SCHEMA
from delta_maintenance.ledger.summary import PRICED, costs_of, freed_until, of_runs
from delta_maintenance.ledger.table import LedgerTable
from delta_maintenance.policies.definition.ledger import Prices

DAYS = 90
_MOST_AHEAD = timedelta(days=31)
MOST_ROWS = 50_000
"""The newest rows that are kept with their texts, which take up to 1 KiB each."""
_PART = 100_000
"""Rows, or rows of sums, that are collected before they are added up."""
_SHOWN = (
    "started_at",
    "table_uri",
    "table_name",
    "owner",
    "operation",
    "outcome",
    "error",
    "link",
    "done_by",
    "approved_by",
    "seconds",
    "bytes_deleted",
    "files_before",
    "files_after",
    "replay_bytes_before",
    "replay_bytes_after",
)
_READ = tuple(
    dict.fromkeys(
        (*_SHOWN, "ended_at", "bytes_freed", "freed_at")
        + ("small_share_before", "small_share_after", *PRICED)
    )
)
_STATES = ("files", "small_files", "replay_bytes")
_SUMS = ("operations", "failed", "bytes_deleted", "bytes_freed", "cost")
_KEYS = ["table", "day"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHistory:
    """What a page needs of a ledger."""

    version: int
    """The version of the ledger that was read, at least."""
    read_at: datetime
    rows: int
    """The number of operations in these days."""
    daily: pa.Table
    """A row for each table and day on which operations ran: `table` is the identity of its address,
    `day` counts from the first day."""
    newest: pa.Table
    """The newest rows, the newest first, with the identity of the table, `freed` and `cost`."""

    @property
    def first_day(self) -> datetime:
        """The midnight with which the first day begins."""
        return first_day(self.read_at)

    def of(self, tables: Collection[str]) -> LedgerHistory:
        """Only what concerns some tables, given by the identities of their addresses."""
        table_names = pa.array(tables, pa.string())
        daily = self.daily.filter(pc.is_in(self.daily["table"], table_names))
        return LedgerHistory(
            version=self.version,
            read_at=self.read_at,
            rows=int(pc.sum(daily["operations"]).as_py() or 0),
            daily=daily,
            newest=self.newest.filter(pc.is_in(self.newest["table"], table_names)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """Numbers of the last 90 days, an array for each with a value for each day."""

    tables: int
    """The tables with a known state."""
    files: npt.NDArray[np.float64]
    """Live files at the end of the day, of all tables; NaN before the first known state."""
    small_share: npt.NDArray[np.float64]
    """The share of small files among them; NaN without files."""
    replay_bytes: npt.NDArray[np.float64]
    """The bytes of log that a reader of each table opens."""
    operations: npt.NDArray[np.float64]
    """Operations that ran on the day."""
    failed: npt.NDArray[np.float64]
    bytes_freed: npt.NDArray[np.float64]
    bytes_kept: npt.NDArray[np.float64]
    """Bytes of deleted files whose storage is still paid for, or may be."""
    cost: npt.NDArray[np.float64]
    """What operations of the day cost; 0 without a price list."""


def first_day(now: datetime) -> datetime:
    """Returns the beginning of the first of the last 90 days, of which `now` is the last one."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=DAYS - 1)


def read_history(ledger: LedgerTable, *, now: datetime, prices: Prices | None) -> LedgerHistory:
    """Reads the last 90 days. `NotADeltaTableError` if there is no ledger yet."""
    # Rows that are appended meanwhile may be read; the next look at the version finds them.
    version = ledger.version()
    since = first_day(now)
    count, daily, newest = 0, [_NO_DAYS], [_NO_ROWS]
    for batch in _parts(ledger.batches(_READ, since_month=f"{since:%Y-%m}")):
        rows = _prepare_rows(of_runs(batch), since=since, now=now, prices=prices)
        count += len(rows)
        daily = [_add_up([*daily, _days_of(rows, since)])]
        newest = [_newest([*newest, rows.select(_NO_ROWS.column_names)])]
    return LedgerHistory(version=version, read_at=now, rows=count, daily=daily[0], newest=newest[0])


def trends(history: LedgerHistory) -> Trends:
    """Adds up the days of all tables. A table keeps its last known state until the next one."""
    daily = history.daily
    tables = pc.dictionary_encode(daily["table"]).combine_chunks()
    number = len(tables.dictionary)
    codes, days = tables.indices.to_numpy(), daily["day"].to_numpy()
    states = {}
    for name in _STATES:
        states[name] = _carry_forward(
            _spread(codes, days, daily[f"{name}_last"], number),
            _spread(codes, days, daily[f"{name}_first"], number),
        )
    has_state = ~np.isnan(states["files"])
    totals = {name: np.nansum(values, axis=0) for name, values in states.items()}
    # A table that came later had the state before that it was found in, but nobody measured any
    # table before the first day.
    measured_days = days[~np.isnan(_numbers(daily["files_last"]))]
    for values in totals.values():
        values[: measured_days.min(initial=DAYS)] = np.nan
    with np.errstate(invalid="ignore"):
        small_share = totals["small_files"] / totals["files"]
    sums = {
        name: np.bincount(days, _numbers(daily[name]), minlength=DAYS).astype(np.float64)
        for name in _SUMS
    }
    return Trends(
        tables=int(has_state.any(axis=1).sum()),
        files=totals["files"],
        small_share=small_share,
        replay_bytes=totals["replay_bytes"],
        operations=sums["operations"],
        failed=sums["failed"],
        bytes_freed=sums["bytes_freed"],
        bytes_kept=sums["bytes_deleted"] - sums["bytes_freed"],
        cost=sums["cost"],
    )


def _parts(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yields larger parts, because a ledger may have a file for each row."""
    collected, rows = [], 0
    for batch in batches:
        collected.append(batch)
        rows += len(batch)
        if rows >= _PART:
            yield pa.concat_tables(collected)
            collected, rows = [], 0
    if collected:
        yield pa.concat_tables(collected)


def _prepare_rows(
    rows: pa.Table, *, since: datetime, now: datetime, prices: Prices | None
) -> pa.Table:
    """The rows of these days, with what is computed of each."""
    kind = rows.schema.field("started_at").type
    # Clocks of other machines may be ahead; but rows of another century would stay the newest.
    ends = pa.scalar(now + _MOST_AHEAD, kind)
    rows = rows.filter(pc.greater_equal(rows["started_at"], pa.scalar(since, kind)))
    rows = rows.filter(pc.less_equal(rows["started_at"], ends))
    addresses = pc.dictionary_encode(pc.fill_null(rows["table_uri"], "")).combine_chunks()
    # One look at each table, not at each row.
    names = pa.array([_identity(uri) for uri in addresses.dictionary.to_pylist()], pa.string())
    cost = pa.nulls(len(rows), pa.float64()) if prices is None else costs_of(rows, prices)
    rows = rows.append_column("table", names.take(addresses.indices))
    rows = rows.append_column("freed", freed_until(rows, now))
    return rows.append_column("cost", cost)


@lru_cache(maxsize=10_000)
def _identity(uri: str) -> str:
    return identity_of(uri)


def _days_of(rows: pa.Table, since: datetime) -> pa.Table:
    """The rows as rows of sums."""
    start = pa.scalar(since, rows.schema.field("started_at").type)
    days = pc.min_element_wise(
        pc.divide(pc.seconds_between(start, rows["started_at"]), 86_400), DAYS - 1
    )
    at = pc.coalesce(rows["ended_at"], rows["started_at"]).cast(pa.timestamp("us", "UTC"))
    columns = {"table": rows["table"], "day": days, "first_at": at, "last_at": at}
    for moment, neighbour in (("first", "before"), ("last", "after")):
        # An operation that did nothing knows only the state before it.
        known_columns = {
            name: pc.coalesce(rows[f"{name}_{neighbour}"], rows[f"{name}_before"]).cast(
                pa.float64()
            )
            for name in ("files", "small_share", "replay_bytes")
        }
        columns[f"files_{moment}"] = known_columns["files"]
        columns[f"small_files_{moment}"] = pc.multiply(
            known_columns["files"], known_columns["small_share"]
        )
        columns[f"replay_bytes_{moment}"] = known_columns["replay_bytes"]
    columns |= {
        "operations": pa.repeat(pa.scalar(1.0), len(rows)),
        "failed": pc.equal(pc.fill_null(rows["outcome"], ""), "failed").cast(pa.float64()),
        "bytes_deleted": pc.fill_null(rows["bytes_deleted"], 0),
        "bytes_freed": rows["freed"],
        "cost": pc.fill_null(rows["cost"], 0.0),
    }
    return pa.table(columns).select(_NO_DAYS.column_names).cast(_NO_DAYS.schema)


def _add_up(day_parts: list[pa.Table]) -> pa.Table:
    """One row of sums for each table and day."""
    days = pa.concat_tables(day_parts)
    firsts = [(f"{name}_first", "first") for name in _STATES]
    lasts = [(f"{name}_last", "last") for name in _STATES]
    sums = [(name, "sum") for name in _SUMS]
    begun = _group_days(days.sort_by("first_at"), [("first_at", "min"), *firsts])
    ended = _group_days(days.sort_by("last_at"), [("last_at", "max"), *lasts, *sums])
    for name in ended.column_names[len(_KEYS) :]:
        begun = begun.append_column(name, ended[name])
    return begun.select(_NO_DAYS.column_names).cast(_NO_DAYS.schema)


def _group_days(days: pa.Table, aggregations: list[tuple[str, str]]) -> pa.Table:
    # In one thread, `first` and `last` follow the order of the rows.
    grouped = days.group_by(_KEYS, use_threads=False).aggregate(aggregations)
    grouped = grouped.rename_columns([*_KEYS, *(name for name, _ in aggregations)])
    return grouped.sort_by([(name, "ascending") for name in _KEYS])


def _newest(row_parts: list[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(row_parts)
    order = pc.sort_indices(rows, sort_keys=[("started_at", "descending")])
    return rows.take(order[:MOST_ROWS])


def _spread(
    codes: npt.NDArray[np.int32], days: npt.NDArray[np.int64], values: pa.ChunkedArray, tables: int
) -> npt.NDArray[np.float64]:
    """A row for each table, a column for each day."""
    spread = np.full((tables, DAYS), np.nan)
    spread[codes, days] = _numbers(values)
    return spread


def _carry_forward(
    last_values: npt.NDArray[np.float64], first_values: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Fills the days without operations: with the state before, and before the first one with the
    state that it found.
    """
    is_known = ~np.isnan(last_values)
    newest = np.maximum.accumulate(np.where(is_known, np.arange(DAYS), -1), axis=1)
    rows = np.arange(len(last_values))[:, None]
    carried = np.where(newest >= 0, last_values[rows, newest], np.nan)
    begun = (
        first_values[rows[:, 0], np.argmax(is_known, axis=1)] if len(last_values) else np.empty(0)
    )
    return np.where(newest >= 0, carried, begun[:, None])


def _numbers(values: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    numbers: npt.NDArray[np.float64] = values.cast(pa.float64()).to_numpy()
    return numbers


_TIME = pa.timestamp("us", "UTC")
_NO_DAYS = pa.schema(
    [("table", pa.string()), ("day", pa.int64()), ("first_at", _TIME), ("last_at", _TIME)]
    + [(f"{name}_{moment}", pa.float64()) for moment in ("first", "last") for name in _STATES]
    + [(name, pa.float64()) for name in _SUMS]
).empty_table()
_NO_ROWS = pa.schema(
    [SCHEMA.field(name) for name in _SHOWN]
    + [("table", pa.string()), ("freed", pa.int64()), ("cost", pa.float64())]
).empty_table()
