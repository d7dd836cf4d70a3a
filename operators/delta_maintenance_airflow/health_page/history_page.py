"""The page of the last 90 days: the tables with the most of something, trends, and what ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from delta_maintenance.ledger.trends import DAYS
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance_airflow.health_page import formats
from delta_maintenance_airflow.health_page.export import ExportedRows, ExportForm
from delta_maintenance_airflow.health_page.history import (
    OUTCOMES,
    KeptHistory,
    LedgerLook,
    WhatRan,
    what_ran,
)
from delta_maintenance_airflow.health_page.listing import has_words
from delta_maintenance_airflow.health_page.rows import TableRow

MOST_TABLES = 10
"""The length of the lists of tables with the most of something."""
RELOAD_SECONDS = 2
"""When a browser asks again for a page that has to be shown without the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """The tables with the most of something."""

    key: str
    title: str
    rows: tuple[tuple[TableRow, int], ...]
    text: Callable[[int], str]


def tops_of(rows: Sequence[TableRow]) -> tuple[Top, ...]:
    """The tables with the most dead bytes, bytes of log to open, and small files."""

    def top(
        key: str, title: str, number: Callable[[TableHealth], int], text: Callable[[int], str]
    ) -> Top:
        numbers = [(row, number(row.health)) for row in rows if row.health is not None]
        numbers.sort(key=lambda pair: -pair[1])
        largest = tuple(pair for pair in numbers[:MOST_TABLES] if pair[1])
        return Top(key=key, title=title, rows=largest, text=text)

    return (
        top("dead-bytes", "Dead bytes", lambda h: h.reclaimable_bytes, formats.size),
        top("replay-bytes", "Log to open", lambda h: h.bytes_to_open, formats.size),
        top("small-files", "Small files", lambda h: h.small_files, formats.count),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """What the page is about."""

    text: str = ""
    """Each word must be in the name, the address, the owner, a tag or a table feature."""
    outcome: str = ""
    """Of what ran."""
    operation: str = ""
    """Likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    """The contents of the page."""

    tables: int
    tops: tuple[Top, ...]
    look: LedgerLook
    """The ledger, or what concerns these tables of it."""
    ran: WhatRan | None


def view_of(rows: Sequence[TableRow], look: LedgerLook, query: HistoryQuery) -> HistoryView:
    """What is shown of all tables of the policy, or of those with the words of the query."""
    tables = [
        row for row in rows if row.in_policy and not row.is_pattern and has_words(row, query.text)
    ]
    if query.text:
        look = look.restricted_to(tables)
    ran = None
    if look.history is not None:
        ran = what_ran(look.history, outcome=query.outcome, operation=query.operation)
    return HistoryView(tables=len(tables), tops=tops_of(tables), look=look, ran=ran)


def add_history(
    app: FastAPI,
    everything: Callable[[], Sequence[TableRow]],
    render_page: Callable[..., Response],
    ledger_history: KeptHistory,
) -> None:
    """Adds the page and its export to the application."""

    def history(request: Request, query: Annotated[HistoryQuery, Depends(_query)]) -> Response:
        """The last 90 days."""
        look = ledger_history.look()
        view = view_of(everything(), look, query)
        response = render_page(request, "history.html", view=view, query=query, outcomes=OUTCOMES)
        if look.is_reading:
            response.headers["Refresh"] = str(RELOAD_SECONDS)
        return response

    def export(
        form: ExportForm, query: Annotated[HistoryQuery, Depends(_query)], part: str = "ran"
    ) -> Response:
        """One part of the page as a file."""
        if part not in PARTS:
            raise HTTPException(404, f"There is no such part; there are {', '.join(PARTS)}.")
        look = ledger_history.look()
        if look.is_reading and part != "top":
            raise HTTPException(503, "The ledger is still being read; try again in a moment.")
        exported = PARTS[part](view_of(everything(), look, query))
        return exported.response(f"history-{part}", form)

    signed_in = [Depends(requires_access_view(AccessView.PLUGINS))]
    app.add_api_route(
        "/history", history, methods=["GET"], response_class=HTMLResponse, dependencies=signed_in
    )
    app.add_api_route("/history/export.{form}", export, methods=["GET"], dependencies=signed_in)


def _query(q: str = "", outcome: str = "", operation: str = "") -> HistoryQuery:
    return HistoryQuery(text=q, outcome=outcome, operation=operation)


def _tops(view: HistoryView) -> ExportedRows:
    return ExportedRows(
        columns=("by", "table", "address", "owner", "number"),
        rows=(
            (top.key, row.name, row.uri, row.owner, number)
            for top in view.tops
            for row, number in top.rows
        ),
    )


def _trends(view: HistoryView) -> ExportedRows:
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

    return ExportedRows(columns=("day", *columns), rows=rows())


def _ran(view: HistoryView) -> ExportedRows:
    columns = (
        *(
            "at",
            "table",
            "owner",
            "operation",
            "outcome",
            "error",
            "link",
            "done_by",
            "approved_by",
        ),
        *("seconds", "bytes_deleted", "bytes_freed", "cost"),
    )
    changed = ("files", "replay_bytes")

    def rows() -> Iterator[Sequence[Any]]:
        for operation in view.ran.rows if view.ran is not None else ():
            pairs = [getattr(operation, name) for name in changed]
            yield (
                *(getattr(operation, name) for name in columns),
                *(getattr(pair, when, None) for pair in pairs for when in ("before", "after")),
            )

    return ExportedRows(
        columns=(*columns, *(f"{n}_{when}" for n in changed for when in ("before", "after"))),
        rows=rows(),
    )


PARTS: dict[str, Callable[[HistoryView], ExportedRows]] = {
    "top": _tops,
    "trends": _trends,
    "ran": _ran,
}
"""The parts of the page by the name in the address."""
