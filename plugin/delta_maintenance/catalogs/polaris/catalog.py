"""Apache Polaris, whose generic tables can be Delta tables."""

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


class PolarisCatalog(GenericTables):
    """One server of Polaris. Its address is that of the server, with or without `/api/catalog`.

    With client credentials, tokens come from the server itself, if the settings name no other
    address. The option `realm` is a realm other than the default one. Released servers vend no
    credentials for generic tables; `vend: true` asks a newer one for them.
    """

    kind = CatalogKind.POLARIS
    namespaces_path = "/api/catalog"
    tables_path = "/api/catalog/polaris"
    vends_by_default = False
    delegation = {"Polaris-Generic-Table-Access-Delegation": "vended-credentials"}

    def __init__(self, settings: CatalogSettings) -> None:
        super().__init__(settings)
        address = checked_settings(settings, "realm", title=_TITLE)
        server = without_path(address, "/api/catalog")
        realm = settings.options.get("realm")
        session = HttpSession(most_bytes=MOST_BYTES)
        authorization = Authorization(
            settings,
            session,
            token_address=f"{server}/api/catalog/v1/oauth/tokens",
            scope="PRINCIPAL_ROLE:ALL",
        )
        self.client = CatalogClient(
            authorization,
            session,
            address=server,
            title=_TITLE,
            rights="NAMESPACE_LIST, TABLE_LIST and TABLE_READ_PROPERTIES",
            headers={"Polaris-Realm": realm} if realm else {},
        )

    def warehouses(self) -> Iterator[str]:
        """Yields the names of the catalogs; needs the right to list them."""
        for entry in entries(self.client.get("/api/management/v1/catalogs"), "catalogs"):
            if name := text(entry.get("name")):
                yield name


_TITLE = "Polaris"
