"""What the page of the fleet shows, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from delta_maintenance.ledger.trends import DAYS
from delta_maintenance_airflow.health_page.fleet.overview import Waits
from delta_maintenance_airflow.health_page.fleet.view import FleetView
from delta_maintenance_airflow.health_page.rows import TableRow

Value = str | int | float | None
# Spreadsheets in East Asian languages take full-width signs, too.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the page, as a table."""

    columns: tuple[str, ...]
    rows: Iterator[Sequence[Any]]

    def to_csv(self) -> str:
        """Lines of CSV. Programs for spreadsheets take no cell for a formula."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(self.columns)
        writer.writerows([_cell(_plain(value)) for value in row] for row in self.rows)
        return text.getvalue()

    def to_json(self) -> str:
        """An array with an object for each row."""
        rows = [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]
        return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False)


def _anomalies(view: FleetView) -> Part:
    return Part(
        columns=("tier", "anomaly", "table", "address", "owner"),
        rows=(
            (found.anomaly.tier, found.anomaly.key, *_named(row), row.owner)
            for found in view.tiers.found
            for row in found.rows
        ),
    )


def _failures(view: FleetView) -> Part:
    return Part(
        columns=("table", "address", "owner", "since", "problem", "link"),
        rows=(
            (*_named(row), row.owner, row.failing_since, row.problem, row.failing_link)
            for row in view.failures
        ),
    )


def _waits(view: FleetView) -> Part:
    def rows(some: Waits) -> Iterator[Sequence[Any]]:
        for each in some.rows:
            yield each.kind, *_named(each.row), each.what, each.why, each.held_by, each.until

    return Part(
        columns=("kind", "table", "address", "what", "why", "held_by", "next_at"),
        rows=(row for some in view.waits for row in rows(some)),
    )


def _tops(view: FleetView) -> Part:
    return Part(
        columns=("by", "table", "address", "owner", "number"),
        rows=((top.key, *_named(row), row.owner, n) for top in view.tops for row, n in top.rows),
    )


def _trends(view: FleetView) -> Part:
    columns = (
        *("files", "small_share", "replay_bytes", "operations", "failed"),
        *("bytes_freed", "bytes_kept", "cost"),
    )
    trends, history = view.look.trends, view.look.history

    def rows() -> Iterator[Sequence[Any]]:
        if trends is None or history is None:
            return
        for day in range(DAYS):
            at = history.first_day + timedelta(days=day)
            yield f"{at:%Y-%m-%d}", *(float(getattr(trends, name)[day]) for name in columns)

    return Part(columns=("day", *columns), rows=rows())


def _ran(view: FleetView) -> Part:
    columns = (
        *("at", "table", "owner", "operation", "outcome", "error", "link", "done_by"),
        *("seconds", "bytes_deleted", "bytes_freed", "cost"),
    )
    changed = ("files", "replay_bytes")

    def rows() -> Iterator[Sequence[Any]]:
        for each in view.ran.rows if view.ran is not None else ():
            pairs = (getattr(each, name) for name in changed)
            numbers = ((p.before, p.after) if p is not None else (None, None) for p in pairs)
            yield (
                *(getattr(each, name) for name in columns),
                *(number for pair in numbers for number in pair),
            )

    return Part(
        columns=(*columns, *(f"{n}_{when}" for n in changed for when in ("before", "after"))),
        rows=rows(),
    )


PARTS: dict[str, Callable[[FleetView], Part]] = {
    "anomalies": _anomalies,
    "failures": _failures,
    "waits": _waits,
    "top": _tops,
    "trends": _trends,
    "ran": _ran,
}
"""The parts of the page by the name in the address."""


def _named(row: TableRow) -> tuple[str, str | None]:
    return row.name, row.uri


def _plain(value: Any) -> Value:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    plain: Value = value
    return plain


def _cell(value: Value) -> Value:
    # An apostrophe makes a text of what would be a formula.
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
