"""The contents of the page of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from delta_maintenance.ledger.trends import trends
from delta_maintenance.policies.entry_files import identity_of
from delta_maintenance_airflow.health_page.anomalies import without_patterns
from delta_maintenance_airflow.health_page.fleet.kept_history import Look
from delta_maintenance_airflow.health_page.fleet.overview import (
    Tiers,
    Top,
    Waits,
    failures_of,
    tiers_of,
    tops_of,
    waits_of,
)
from delta_maintenance_airflow.health_page.fleet.ran import WhatRan, what_ran
from delta_maintenance_airflow.health_page.fleet.trend_charts import trend_charts
from delta_maintenance_airflow.health_page.listing import has_words
from delta_maintenance_airflow.health_page.rows import TableRow


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuery:
    """What the page is about."""

    text: str = ""
    """Each word must be in the name, the address, the owner, a tag or a table feature."""
    outcome: str = ""
    """Of what ran."""
    operation: str = ""
    """Likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The contents of the page."""

    tables: int
    tiers: Tiers
    failures: tuple[TableRow, ...]
    waits: tuple[Waits, ...]
    tops: tuple[Top, ...]
    look: Look
    """The ledger, or what concerns these tables of it."""
    ran: WhatRan | None


def view_of(rows: Sequence[TableRow], look: Look, query: FleetQuery) -> FleetView:
    """What is shown of all rows, or of those with the words of the query."""
    rows = [row for row in rows if row.in_policy and has_words(row, query.text)]
    tables = without_patterns(rows)
    if look.history is not None and query.text:
        history = look.history.of({identity_of(row.uri) for row in tables if row.uri})
        added = trends(history)
        charts = trend_charts(added, history.first_day, currency=look.currency)
        look = replace(look, history=history, trends=added, charts=charts)
    ran = None
    if look.history is not None:
        ran = what_ran(look.history, outcome=query.outcome, operation=query.operation)
    return FleetView(
        tables=len(tables),
        tiers=tiers_of(tables),
        failures=failures_of(rows),
        waits=waits_of(tables),
        tops=tops_of(tables),
        look=look,
        ran=ran,
    )
