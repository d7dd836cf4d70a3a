"""What the ledger says about one table."""

from __future__ import annotations

from dataclasses import dataclass

from delta_maintenance.ledger.trends import trends
from delta_maintenance.policies.entry_files import identity_of
from delta_maintenance_airflow.health_page.drawing import Chart
from delta_maintenance_airflow.health_page.fleet.kept_history import Look
from delta_maintenance_airflow.health_page.fleet.ran import WhatRan, what_ran
from delta_maintenance_airflow.health_page.fleet.trend_charts import trend_charts
from delta_maintenance_airflow.health_page.rows import TableRow

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePast:
    """The last 90 days of a table."""

    operations: int
    ran: WhatRan
    charts: tuple[Chart, ...]


def past_of(row: TableRow, look: Look) -> TablePast | None:
    """The last 90 days of a table; None without a ledger, or without an address."""
    if look.history is None or row.uri is None:
        return None
    history = look.history.of({identity_of(row.uri)})
    charts = trend_charts(trends(history), history.first_day, currency=look.currency)
    return TablePast(
        operations=history.rows, ran=what_ran(history, most=_SHOWN), charts=charts or ()
    )
