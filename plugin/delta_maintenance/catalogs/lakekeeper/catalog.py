"""Lakekeeper, whose generic tables can be Delta tables, and which vends credentials for them."""

from __future__ import annotations

from collections.abc import Iterator

from delta_maintenance.catalogs.http.authorization import Authorization
from delta_maintenance.catalogs.http.client import (
    MOST_BYTES,
    CatalogClient,
    checked_settings,
    entries,
    without_path,
)
from delta_maintenance.catalogs.http.gathering import text
from delta_maintenance.catalogs.http.generic_tables import GenericTables
from delta_maintenance.catalogs.names import CatalogKind
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.rest.client import HttpSession


class LakekeeperCatalog(GenericTables):
    """One server of Lakekeeper. Its address is that of the server, with or without `/catalog`.

    The option `project` is the ID of a project other than the default one.
    """

    kind = CatalogKind.LAKEKEEPER
    namespaces_path = "/catalog"
    tables_path = "/lakekeeper"
    delegation = {"X-Iceberg-Access-Delegation": "vended-credentials"}

    def __init__(self, settings: CatalogSettings) -> None:
        super().__init__(settings)
        address = checked_settings(settings, "project", title=_TITLE)
        project = settings.options.get("project")
        session = HttpSession(most_bytes=MOST_BYTES)
        self.client = CatalogClient(
            Authorization(settings, session),
            session,
            address=without_path(address, "/catalog"),
            title=_TITLE,
            rights="the rights to list its namespaces and to read its tables",
            headers={"x-project-id": project} if project else {},
        )

    def warehouses(self) -> Iterator[str]:
        """Yields the names of the warehouses of the project."""
        for entry in entries(self.client.get("/management/v1/warehouse"), "warehouses"):
            if name := text(entry.get("name")):
                yield name


_TITLE = "Lakekeeper"
