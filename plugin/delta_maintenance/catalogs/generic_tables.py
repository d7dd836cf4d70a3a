"""Generic tables beside those of Iceberg, as Lakekeeper and Polaris have them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from delta_maintenance.address import Access, CatalogKind, CatalogName
from delta_maintenance.catalogs.catalog import (
    Catalog,
    CatalogListing,
    CatalogTable,
    PartFilter,
    PassedOver,
    VendedCredentials,
)
from delta_maintenance.catalogs.credentials import texts, vended_credentials
from delta_maintenance.catalogs.http.authorization import Authorization
from delta_maintenance.catalogs.http.client import (
    MOST_BYTES,
    CatalogClient,
    checked_settings,
    entries,
    segment,
    without_path,
)
from delta_maintenance.catalogs.http.gathering import Gathering, delta_table, text
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError
from delta_maintenance.rest.client import HttpSession


class GenericTables(Catalog):
    """One server. Names consist of the warehouse, the levels of the namespace, and the table."""

    namespaces_path: ClassVar[str]
    """The path of the interface of Iceberg, below the address."""
    tables_path: ClassVar[str]
    """The path of the interface of generic tables, below the address."""
    delegation: ClassVar[Mapping[str, str]]
    """The header that asks for credentials."""
    vends_by_default: ClassVar[bool] = True
    """Whether the catalog is asked for credentials if the option `vend` is not given."""

    client: CatalogClient

    def __init__(self, settings: CatalogSettings) -> None:
        self._catalog = settings.catalog
        vends = settings.flag("vend")
        self._vends = self.vends_by_default if vends is None else vends
        self._prefixes: dict[str, str] = {}

    @abstractmethod
    def warehouses(self) -> Iterator[str]:
        """Yields the names of the warehouses on the server."""

    def list(
        self,
        *,
        leads_to: PartFilter,
        includes: PartFilter,
        known_tables: Mapping[CatalogName, CatalogTable],
    ) -> CatalogListing:
        """Lists tables.

        Sends one request per warehouse, two or more per namespace, and one per Delta table that is
        not known.
        """

        def warehouses(_: None) -> Iterator[tuple[str, ...]]:
            yield from ((name,) for name in self.warehouses() if leads_to((name,)))

        def children(parent: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
            yield from filter(leads_to, self._namespaces(parent))

        def tables(namespace: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str | None]]:
            for entry in self._identifiers(namespace):
                name = CatalogName(self.kind, (*namespace, text(entry.get("name")) or "?"))
                # Names the format and the ID in Lakekeeper only.
                form, table_id = text(entry.get("format")), text(entry.get("id"))
                before = known_tables.get(name)
                if not includes(name.parts):
                    gathering.pass_over(PassedOver.NOT_IN_POLICY)
                elif form is not None and form.lower() != "delta":
                    gathering.pass_over(PassedOver.OTHER_FORMAT)
                elif before is not None and table_id and before.entity_tag == table_id:
                    gathering.add(name.parts, partial(_same, before))
                else:
                    yield name.parts, table_id

        def load(entry: tuple[tuple[str, ...], str | None]) -> tuple[()]:
            table_parts, table_id = entry
            answer = self._load(table_parts)
            if _is_delta(answer):
                name = CatalogName(self.kind, table_parts)
                gathering.add(table_parts, partial(self._table, name, answer, table_id))
            else:
                gathering.pass_over(PassedOver.OTHER_FORMAT)
            return ()

        with Gathering(self.client, self.kind) as gathering:
            level = (
                [(self._catalog,)] if self._catalog else gathering.each(warehouses, [((), None)])
            )
            namespaces: list[tuple[str, ...]] = []
            while level := gathering.each(children, [(name, name) for name in level]):
                namespaces += level
            entries_found = gathering.each(tables, [(name, name) for name in namespaces])
            gathering.each(load, [(entry[0], entry) for entry in entries_found])
            return gathering.listing()

    def resolve(self, name: CatalogName) -> CatalogTable:
        """Returns one table: one request, and one more for the first table of a warehouse."""
        if len(name.parts) < 3:
            raise CatalogError(
                f"{name} names no table",
                remedy=f"write it like {self.kind}://WAREHOUSE.NAMESPACE.TABLE",
            )
        with self.client.naming(str(name)):
            answer = self._load(name.parts)
        if not _is_delta(answer):
            raise CatalogError(f"{name} is no Delta table in its catalog")
        return self._table(name, answer, None)

    def credentials(self, table: CatalogTable, access: Access) -> tuple[VendedCredentials, ...]:
        """Returns credentials for the rights that the caller has, which may be only to read."""
        with self.client.naming(str(table.name)):
            answer = self._load(table.name.parts, self.delegation)
        return vended_credentials(
            entries(answer, "storage-credentials") or entries(answer, "storage-access-configs"),
            location=table.location,
            access=access,
            config=texts(answer.get("config")),
        )

    def check(self) -> str:
        """Requests the configuration of the warehouse, or the list of warehouses."""
        warehouse_parts = (self._catalog,) if self._catalog else ()
        with self.client.naming(str(CatalogName(self.kind, warehouse_parts))):
            if self._catalog:
                self._prefix(self._catalog)
            else:
                next(self.warehouses(), None)
        return f"{self.client.title} answers"

    def close(self) -> None:
        """Closes connections."""
        self.client.close()

    def _prefix(self, warehouse: str) -> str:
        """Returns what stands for a warehouse in paths."""
        if warehouse not in self._prefixes:
            configuration = self.client.get(
                f"{self.namespaces_path}/v1/config", {"warehouse": warehouse}
            )
            prefix = texts(configuration.get("overrides")).get("prefix")
            prefix = prefix or texts(configuration.get("defaults")).get("prefix") or warehouse
            self._prefixes[warehouse] = segment(prefix)
        return self._prefixes[warehouse]

    def _namespaces(self, parent: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yields the namespaces directly below a namespace or a warehouse."""
        path = f"{self.namespaces_path}/v1/{self._prefix(parent[0])}/namespaces"
        # The empty token asks for pages.
        query = {"pageToken": "", "pageSize": _PAGE}
        if levels := parent[1:]:
            query["parent"] = _SEPARATOR.join(levels)
        for page in self.client.pages(path, query, token="pageToken", next_token=_NEXT):
            namespaces = page.get("namespaces")
            for namespace in namespaces if isinstance(namespaces, list) else ():
                if isinstance(namespace, list) and namespace and tuple(namespace[:-1]) == levels:
                    yield (parent[0], *map(str, namespace))

    def _identifiers(self, namespace: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
        path = f"{self._namespace_path(namespace)}/generic-tables"
        pages = self.client.pages(path, {"pageSize": _PAGE}, token="pageToken", next_token=_NEXT)
        for page in pages:
            yield from entries(page, "identifiers")

    def _load(
        self, table_parts: tuple[str, ...], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        path = f"{self._namespace_path(table_parts[:-1])}/generic-tables/{segment(table_parts[-1])}"
        return self.client.get(path, headers=headers)

    def _namespace_path(self, namespace: tuple[str, ...]) -> str:
        prefix = self._prefix(namespace[0])
        levels = segment(_SEPARATOR.join(namespace[1:]))
        return f"{self.tables_path}/v1/{prefix}/namespaces/{levels}"

    def _table(
        self, name: CatalogName, answer: Mapping[str, Any], table_id: str | None
    ) -> CatalogTable:
        table = answer["table"]
        return delta_table(
            name,
            table.get("base-location"),
            table_id=table_id,
            # A table that is created anew has another ID, and its location never changes.
            entity_tag=table_id,
            comment=text(table.get("doc")),
            vends_credentials=self._vends,
            properties=texts(table.get("properties")),
        )


def _is_delta(answer: Mapping[str, Any]) -> bool:
    table = answer.get("table")
    return isinstance(table, Mapping) and str(table.get("format")).lower() == "delta"


def _same(table: CatalogTable) -> CatalogTable:
    return table


_SEPARATOR = "\x1f"
"""Between the levels of a namespace."""
_NEXT = "next-page-token"
_PAGE = "1000"


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
        address = checked_settings(settings, "project", title="Lakekeeper")
        project = settings.options.get("project")
        session = HttpSession(most_bytes=MOST_BYTES)
        self.client = CatalogClient(
            Authorization(settings, session),
            session,
            address=without_path(address, "/catalog"),
            title="Lakekeeper",
            rights="the rights to list its namespaces and to read its tables",
            headers={"x-project-id": project} if project else {},
        )

    def warehouses(self) -> Iterator[str]:
        """Yields the names of the warehouses of the project."""
        for entry in entries(self.client.get("/management/v1/warehouse"), "warehouses"):
            if name := text(entry.get("name")):
                yield name


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
        address = checked_settings(settings, "realm", title="Polaris")
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
            title="Polaris",
            rights="NAMESPACE_LIST, TABLE_LIST and TABLE_READ_PROPERTIES",
            headers={"Polaris-Realm": realm} if realm else {},
        )

    def warehouses(self) -> Iterator[str]:
        """Yields the names of the catalogs; needs the right to list them."""
        for entry in entries(self.client.get("/api/management/v1/catalogs"), "catalogs"):
            if name := text(entry.get("name")):
                yield name
