"""The routes of the page of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from delta_maintenance_airflow.health_page.fleet.export import PARTS
from delta_maintenance_airflow.health_page.fleet.kept_history import KeptHistory
from delta_maintenance_airflow.health_page.fleet.overview import SHOWN
from delta_maintenance_airflow.health_page.fleet.ran import OUTCOMES
from delta_maintenance_airflow.health_page.fleet.view import FleetQuery, view_of
from delta_maintenance_airflow.health_page.rows import TableRow

_TYPES = {"csv": "text/csv", "json": "application/json"}
RELOAD_SECONDS = 2
"""When a browser asks again for a page that has to be shown without the ledger."""


def add_fleet(
    app: FastAPI,
    everything: Callable[[], Sequence[TableRow]],
    rendered: Callable[..., Response],
    kept: KeptHistory,
) -> None:
    """Adds the page and its export to the application."""

    def fleet(request: Request, query: Annotated[FleetQuery, Depends(_query)]) -> Response:
        """The fleet: tiers, failures, what waits, trends and what ran."""
        look = kept.look()
        view = view_of(everything(), look, query)
        response = rendered(
            request,
            "fleet.html",
            view=view,
            query=query,
            outcomes=OUTCOMES,
            shown=SHOWN,
        )
        if look.is_reading:
            response.headers["Refresh"] = str(RELOAD_SECONDS)
        return response

    def export(
        form: Literal["csv", "json"],
        query: Annotated[FleetQuery, Depends(_query)],
        part: str = "ran",
    ) -> Response:
        """One part of the page as a file."""
        if part not in PARTS:
            raise HTTPException(404, f"There is no such part; there are {', '.join(PARTS)}.")
        look = kept.look()
        if look.is_reading and part in ("ran", "trends"):
            raise HTTPException(503, "The ledger is still being read; try again in a moment.")
        found = PARTS[part](view_of(everything(), look, query))
        return Response(
            found.to_csv() if form == "csv" else found.to_json(),
            media_type=_TYPES[form],
            headers={"Content-Disposition": f'attachment; filename="fleet-{part}.{form}"'},
        )

    signed_in = [Depends(requires_access_view(AccessView.PLUGINS))]
    app.add_api_route(
        "/fleet", fleet, methods=["GET"], response_class=HTMLResponse, dependencies=signed_in
    )
    app.add_api_route("/fleet/export.{form}", export, methods=["GET"], dependencies=signed_in)


def _query(q: str = "", outcome: str = "", operation: str = "") -> FleetQuery:
    return FleetQuery(text=q, outcome=outcome, operation=operation)
