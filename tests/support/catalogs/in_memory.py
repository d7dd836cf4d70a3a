"""Catalogs in memory, in place of the clients of servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import pytest

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs import (
    Catalog,
    CatalogFailure,
    CatalogListing,
    CatalogTable,
    PartFilter,
    PassedOver,
)
from delta_maintenance.catalogs import catalog as opening
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError, DeltaMaintenanceError


class InMemoryCatalog(Catalog):
    """Tables in a dictionary. Clients with the same address are of the same server."""

    tables: ClassVar[dict[str, dict[CatalogName, CatalogTable]]] = {}
    """By the address of the server."""
    broken: ClassVar[dict[str, DeltaMaintenanceError]] = {}
    """The error of a server by its address, or of a namespace by its name with the scheme."""
    opened: ClassVar[list[CatalogSettings]] = []
    known: ClassVar[list[frozenset[CatalogName]]] = []
    """The names that each listing was given as known."""
    resolved: ClassVar[list[CatalogName]] = []

    def __init__(self, settings: CatalogSettings) -> None:
        self.settings = settings
        self.server = settings.address or ""
        self.opened.append(settings)

    def list(
        self,
        *,
        leads_to: PartFilter,
        includes: PartFilter,
        known_tables: Mapping[CatalogName, CatalogTable],
    ) -> CatalogListing:
        self._answers()
        self.known.append(frozenset(known_tables))
        found, failures, excluded = [], {}, 0
        for name, table in sorted(self.tables.get(self.server, {}).items()):
            if name.kind is not self.settings.kind or not leads_to(name.namespace):
                continue
            where = f"{name.kind}://{'.'.join(name.namespace)}"
            if where in self.broken:
                failures[where] = CatalogFailure(where=where, error=self.broken[where])
            elif includes(name.parts):
                found.append(table)
            else:
                excluded += 1
        return CatalogListing(
            tables=tuple(found),
            failures=tuple(failures.values()),
            passed_over={PassedOver.VIEW: 2, PassedOver.NOT_IN_POLICY: excluded},
            requests=1,
        )

    def resolve(self, name: CatalogName) -> CatalogTable:
        self._answers()
        self.resolved.append(name)
        table = self.tables.get(self.server, {}).get(name)
        if table is None:
            raise CatalogError(f"the catalog has no table {name}")
        return table

    def check(self) -> str:
        self._answers()
        return f"{self.server} answers"

    def close(self) -> None:
        pass

    def _answers(self) -> None:
        if self.server in self.broken:
            raise self.broken[self.server]


def catalog_table(name: str, location: str, **values: Any) -> CatalogTable:
    """A table by its name with the scheme."""
    return CatalogTable(name=CatalogName.parse(name), location=location, **values)


def use_catalogs(
    monkeypatch: pytest.MonkeyPatch, servers: Mapping[str, Iterable[CatalogTable]]
) -> type[InMemoryCatalog]:
    """Puts these servers, with their tables, in the place of all others until the test ends."""
    # Imported again by name in the place of the client of each kind.
    monkeypatch.setattr(
        opening, "_CLIENTS", dict.fromkeys(CatalogKind, "in_memory:InMemoryCatalog")
    )
    monkeypatch.setattr(
        opening, "import_module", lambda _: __import__(__name__, fromlist=["InMemoryCatalog"])
    )
    tables = {server: {each.name: each for each in some} for server, some in servers.items()}
    monkeypatch.setattr(InMemoryCatalog, "tables", tables)
    for name, empty in (("broken", {}), ("opened", []), ("known", []), ("resolved", [])):
        monkeypatch.setattr(InMemoryCatalog, name, empty)
    return InMemoryCatalog
