"""Opens the client for a kind of catalog."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from delta_maintenance.catalogs.catalog import Catalog
from delta_maintenance.catalogs.names import CatalogKind
from delta_maintenance.catalogs.settings import CatalogSettings

_CLIENTS: Mapping[CatalogKind, str] = {
    CatalogKind.UNITY: "unity.catalog:UnityCatalog",
    CatalogKind.GLUE: "glue.catalog:GlueCatalog",
    CatalogKind.HIVE: "hive.catalog:HiveCatalog",
    CatalogKind.LAKEKEEPER: "lakekeeper.catalog:LakekeeperCatalog",
    CatalogKind.POLARIS: "polaris.catalog:PolarisCatalog",
    CatalogKind.GRAVITINO: "gravitino.catalog:GravitinoCatalog",
}


def open_catalog(settings: CatalogSettings) -> Catalog:
    """Returns a client. Nothing is requested yet.

    `InvalidRequestError` for settings that the kind does not understand, and if a package that it
    needs is not installed.
    """
    # Imported on demand, so that a catalog loads only its own client.
    module, _, name = _CLIENTS[settings.kind].partition(":")
    client: type[Catalog] = getattr(import_module(f"delta_maintenance.catalogs.{module}"), name)
    return client(settings)  # type: ignore[call-arg]
