"""Adds the health page and the pool of Spark jobs to Airflow.

The entry point `airflow.plugins` names this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from delta_maintenance_airflow import URL_PREFIX, spark_pool

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class HealthPage:
    """The application of the page, created on the first request.

    Airflow loads plugins in every process, and only its API server calls this one.
    """

    _app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            from delta_maintenance_airflow.health_page.app import configured_app

            self._app = configured_app()
        await self._app(scope, receive, send)


class DeltaMaintenancePlugin(AirflowPlugin):
    """Adds *Browse > Delta tables*, and creates the pool of Spark jobs."""

    name = "delta_maintenance"
    fastapi_apps: list[Any] = [
        {"app": HealthPage(), "url_prefix": URL_PREFIX, "name": "Delta tables"}
    ]
    listeners: list[Any] = [spark_pool]
    external_views: list[Any] = [
        {
            "name": "Delta tables",
            # Relative to the base of Airflow's pages, which depends on the proxy.
            "href": f"{URL_PREFIX.removeprefix('/')}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "delta-tables",
            "icon": f"{URL_PREFIX.removeprefix('/')}/static/icon.svg",
            "icon_dark_mode": f"{URL_PREFIX.removeprefix('/')}/static/icon-dark.svg",
        }
    ]
