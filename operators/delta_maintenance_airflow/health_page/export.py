"""What the pages show, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from fastapi.responses import Response

from delta_maintenance_airflow.health_page.anomalies import anomaly_of, tier_of
from delta_maintenance_airflow.health_page.rows import TableRow

ExportForm = Literal["csv", "json"]
Cell = str | int | float | None
# Spreadsheets in East Asian languages take full-width signs, too.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_TYPES = {"csv": "text/csv", "json": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRows:
    """One part of a page, as a table."""

    columns: tuple[str, ...]
    rows: Iterable[Sequence[Any]]

    def response(self, name: str, form: ExportForm) -> Response:
        """The file of this name for a browser."""
        return Response(
            self.to_csv() if form == "csv" else self.to_json(),
            media_type=_TYPES[form],
            headers={"Content-Disposition": f'attachment; filename="{name}.{form}"'},
        )

    def to_csv(self) -> str:
        """Lines of CSV. Programs for spreadsheets take no cell for a formula."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(self.columns)
        writer.writerows([_without_formula(_plain(cell)) for cell in row] for row in self.rows)
        return text.getvalue()

    def to_json(self) -> str:
        """An array with an object for each row."""
        rows = [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]
        return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False)


def exported_tables(rows: Iterable[TableRow]) -> ExportedRows:
    """The list of tables: what is wrong with each, and what waits, by whom and until when."""
    return ExportedRows(
        columns=(
            *("table", "address", "owner", "status", "tier", "anomaly", "since", "problem", "link"),
            *("due", "to_check", "needs_approval", "will_ask", "blocked", "deferred"),
            *("next_at", "held_by", "held_bytes"),
        ),
        rows=map(_table_cells, rows),
    )


def _table_cells(row: TableRow) -> tuple[Any, ...]:
    anomaly = anomaly_of(row) if not row.is_pattern else None
    operations = (row.due, row.to_check, row.waiting, row.will_ask, row.held_back, row.deferred)
    return (
        *(row.name, row.uri, row.owner, row.status),
        None if row.is_pattern else tier_of(row, anomaly),
        anomaly.key if anomaly is not None else None,
        *(row.failing_since, row.problem, row.failing_link),
        *(", ".join(names) or None for names in operations),
        row.next_at,
        ", ".join(held.holder for held in row.held) or None,
        row.held_bytes,
    )


def _plain(value: Any) -> Cell:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    plain: Cell = value
    return plain


def _without_formula(cell: Cell) -> Cell:
    # An apostrophe makes a text of what would be a formula.
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
