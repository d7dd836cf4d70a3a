"""Adds the health page and the pool of Spark jobs to Airflow.

The entry point `airflow.plugins` names this module.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from delta_maintenance_airflow import URL_PREFIX
from delta_maintenance_airflow.settings import spark_pool_slots

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
    listeners: list[Any] = [sys.modules[__name__]]
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


SPARK_POOL = "delta_spark"
_log = logging.getLogger(__name__)


@hookimpl
def on_starting(component: Any) -> None:
    """Creates the pool if it is configured."""
    # The process of a task is a component too, and has no access to the database. Which service
    # starts is not known yet.
    if type(component).__name__ != "Job":
        return
    try:
        create_spark_pool()
    except Exception:
        _log.warning("the pool %s could not be created", SPARK_POOL, exc_info=True)


def create_spark_pool() -> None:
    """Creates the pool unless it exists; its number of slots can then be changed in Airflow.

    It includes deferred tasks, since a task of another provider may be deferred while its job runs.
    """
    slots = spark_pool_slots()
    if slots is None:
        return
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        if Pool.get_pool(SPARK_POOL, session=session) is None:
            session.add(
                Pool(
                    pool=SPARK_POOL,
                    slots=slots,
                    description="Spark jobs of the maintenance of Delta tables",
                    include_deferred=True,
                )
            )
            _log.info("created the pool %s with %d slots", SPARK_POOL, slots)
