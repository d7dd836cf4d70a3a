"""Unity Catalog: the interface that the open-source server and Databricks have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from delta_maintenance.address import Access, CatalogKind, CatalogName
from delta_maintenance.catalogs.catalog import (
    Aspect,
    Catalog,
    CatalogListing,
    CatalogTable,
    ManagedState,
    PartFilter,
    PassedOver,
    VendedCredentials,
)
from delta_maintenance.catalogs.credentials import temporary_credentials, texts, vended_credentials
from delta_maintenance.catalogs.http.authorization import Authorization, RequestRefused
from delta_maintenance.catalogs.http.client import (
    MOST_BYTES,
    CatalogClient,
    checked_settings,
    entries,
    origin,
    segment,
    without_path,
)
from delta_maintenance.catalogs.http.gathering import (
    Gathering,
    delta_table,
    further_aspects,
    text,
    texts_of,
)
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.catalogs.unity.commits import (
    CREDENTIALS,
    DeltaApi,
    managed_state,
    report_published,
)
from delta_maintenance.errors import CatalogError
from delta_maintenance.rest.client import HttpSession

Parts = tuple[str, ...]


def request_tags(client: CatalogClient, tables: Sequence[CatalogTable]) -> CatalogListing:
    """Requests the tags of tables: one request per table, per schema and per catalog.

    A table has its own value of a tag, or else that of its schema, or else that of its catalog. If
    the tags of a schema or a catalog cannot be read, its tables are left out.
    """

    def tags(namespace: Parts) -> Iterator[tuple[Parts, Mapping[str, str]]]:
        yield namespace, _tags(client, namespace)

    def add_tags(table: CatalogTable) -> Iterator[CatalogTable]:
        catalog, schema = (above[table.name.parts[:length]] for length in (1, 2))
        yield replace(table, tags={**catalog, **schema, **_tags(client, table.name.parts)})

    open_tables = [table for table in tables if Aspect.TAGS in table.further]
    complete = [table for table in tables if Aspect.TAGS not in table.further]
    namespaces = {table.name.parts[:length] for table in open_tables for length in (1, 2)}
    with Gathering(client, CatalogKind.UNITY, subject="the tags", needs=_RIGHTS) as gathering:
        above = dict(
            gathering.each(tags, [(namespace, namespace) for namespace in sorted(namespaces)])
        )
        requests = [
            (table.name.parts, table)
            for table in open_tables
            if above.keys() >= {table.name.parts[:1], table.name.parts[:2]}
        ]
        tagged_tables = gathering.each(add_tags, requests)
        return gathering.part([*complete, *tagged_tables])


def _tags(client: CatalogClient, name_parts: Parts) -> Mapping[str, str]:
    name = str(CatalogName(CatalogKind.UNITY, name_parts))
    if any("." in name_part for name_part in name_parts):
        raise CatalogError(f"the tags of {name} cannot be requested", remedy="rename it")
    kind = ("catalogs", "schemas", "tables")[len(name_parts) - 1]
    path = f"/entity-tag-assignments/{kind}/{segment('.'.join(name_parts))}/tags"
    return {
        tag["tag_key"]: tag.get("tag_value", "")
        for page in client.pages(path, {})
        for tag in texts_of(page, "tag_assignments", "tag_key", f"the tags of {name}")
    }


_RIGHTS = "USE CATALOG, USE SCHEMA and SELECT or BROWSE"


def table_credentials(
    client: CatalogClient, delta: DeltaApi, table: CatalogTable, access: Access
) -> tuple[VendedCredentials, ...]:
    """Returns fresh credentials: of the Delta API for a catalog-managed table, if the server has
    it, and else of the interface for all tables.

    `CatalogError` names the missing rights if the catalog denies them.
    """
    name = str(table.name)
    with client.naming(name):
        try:
            return _request_credentials(client, delta, table, access)
        except RequestRefused as failure:
            if failure.status != 403:
                raise
            denied = str(failure)
    # Raised outside the handler, so that the error has no `__context__`.
    # A server asks for the rights on the catalog and the schema in each request, and does not say
    # which right is missing.
    rights = "USE CATALOG, USE SCHEMA and SELECT"
    if access is Access.READ_WRITE:
        rights = "USE CATALOG, USE SCHEMA, SELECT and MODIFY"
    purpose = "reading" if access is Access.READ else "reading and writing"
    raise CatalogError(
        f"{client.title} denies credentials for {purpose} {name}, which need {rights} ({denied})",
        remedy="grant those that are missing, and on Databricks EXTERNAL USE SCHEMA",
    )


def _request_credentials(
    client: CatalogClient, delta: DeltaApi, table: CatalogTable, access: Access
) -> tuple[VendedCredentials, ...]:
    operation = access.name
    if table.catalog_managed and (path := delta.path(table.name, CREDENTIALS)) is not None:
        answer = client.get(path, {"operation": operation})
        held = entries(answer, "storage-credentials")
        return vended_credentials(held, location=table.location, access=access)
    answer = client.send(
        "POST",
        "/temporary-table-credentials",
        body={"table_id": table.table_id, "operation": operation},
    )
    return temporary_credentials(answer, location=table.location, access=access)


PATH = "/api/2.1/unity-catalog"


class UnityCatalog(Catalog):
    """One server of Unity Catalog. Its address is that of the server, with or without `PATH`.

    With client credentials, tokens come from the server itself, as on Databricks, if the settings
    name no other address.
    """

    kind = CatalogKind.UNITY

    def __init__(self, settings: CatalogSettings) -> None:
        server = without_path(checked_settings(settings, "tags", title=_TITLE), PATH, "/api")
        session = HttpSession(most_bytes=MOST_BYTES)
        authorization = Authorization(
            settings,
            session,
            token_address=f"{origin(server)}/oidc/v1/token",
            scope="all-apis",
            basic=True,
        )
        self.client = CatalogClient(
            authorization,
            session,
            address=server + PATH,
            title=_TITLE,
            rights="USE CATALOG, USE SCHEMA and SELECT",
        )
        self._delta = DeltaApi(self.client)
        self._catalog = settings.catalog
        self._vends = settings.flag("vend") is not False
        self._further, self.describes_all = further_aspects(settings, frozenset({Aspect.TAGS}))

    def list(
        self,
        *,
        leads_to: PartFilter,
        includes: PartFilter,
        known_tables: Mapping[CatalogName, CatalogTable],
    ) -> CatalogListing:
        """Lists tables: one request per page of catalogs, of schemas, and of tables."""

        def catalogs(_: None) -> Iterator[tuple[str, ...]]:
            for entry in self._entries("catalogs", {}):
                name = text(entry.get("name"))
                if name and leads_to((name,)):
                    yield (name,)

        def schemas(catalog: str) -> Iterator[tuple[str, ...]]:
            for entry in self._entries("schemas", {"catalog_name": catalog}):
                name = text(entry.get("name"))
                # Every catalog of Databricks has this schema of views.
                if name and name != "information_schema" and leads_to((catalog, name)):
                    yield catalog, name

        def tables(schema: tuple[str, ...]) -> tuple[()]:
            for entry in self._tables(schema):
                name = CatalogName(self.kind, (*schema, text(entry.get("name")) or "?"))
                if not includes(name.parts):
                    gathering.pass_over(PassedOver.NOT_IN_POLICY)
                elif reason := _passed_over(entry):
                    gathering.pass_over(reason)
                else:
                    gathering.add(name.parts, partial(self._table, name, entry))
            return ()

        with Gathering(self.client, self.kind) as gathering:
            of_server = (
                [(self._catalog,)] if self._catalog else gathering.each(catalogs, [((), None)])
            )
            schema_names = gathering.each(schemas, [(name, name[0]) for name in of_server])
            gathering.each(tables, [(name, name) for name in schema_names])
            return gathering.listing()

    def resolve(self, name: CatalogName) -> CatalogTable:
        """Returns one table: one request, unless a part of the name contains a dot."""
        if len(name.parts) != 3:
            raise CatalogError(
                f"{name} does not name a table of Unity Catalog",
                remedy="write it like uc://CATALOG.SCHEMA.TABLE",
            )
        with self.client.naming(str(name)):
            if any("." in name_part for name_part in name.parts):
                # The address of a table could not be told from that of another one.
                entry = next(
                    (
                        table
                        for table in self._tables(name.namespace)
                        if table.get("name") == name.table
                    ),
                    None,
                )
                if entry is None:
                    raise CatalogError(f"{self.client.title} has no {name}")
            else:
                full_name = ".".join(name.parts)
                entry = self.client.get(f"/tables/{segment(full_name)}")
        if reason := _passed_over(entry):
            raise CatalogError(f"{name} is no Delta table in Unity Catalog: {reason}")
        # Databricks finds names in any case, and has them in lower case.
        stated_name = CatalogName(
            self.kind,
            tuple(
                text(entry.get(field)) or name_part
                for field, name_part in zip(
                    ("catalog_name", "schema_name", "name"), name.parts, strict=True
                )
            ),
        )
        if str(stated_name).lower() != str(name).lower():
            raise CatalogError(
                f"the catalog states {stated_name} instead of {name}",
                remedy="report it to the operator of the catalog",
            )
        return self._table(stated_name, entry)

    def describe(
        self, tables: Sequence[CatalogTable], aspects: frozenset[Aspect]
    ) -> CatalogListing:
        """Requests the tags of tables on Databricks."""
        if Aspect.TAGS not in aspects:
            return super().describe(tables, aspects)
        return request_tags(self.client, tables)

    def credentials(self, table: CatalogTable, access: Access) -> tuple[VendedCredentials, ...]:
        """Returns the credentials for a table; one request, and one more for each catalog."""
        return table_credentials(self.client, self._delta, table, access)

    def managed_state(self, table: CatalogTable) -> ManagedState | None:
        """Returns the ratified commits of a catalog-managed table."""
        return managed_state(self.client, self._delta, table) if table.catalog_managed else None

    def report_published(self, table: CatalogTable, version: int) -> None:
        """Reports published commits, so that the server permits further ones."""
        report_published(self.client, self._delta, table, version)

    def check(self) -> str:
        """Lists one page of the catalogs, or of the schemas of the catalog."""
        where = (self._catalog,) if self._catalog else ()
        with self.client.naming(str(CatalogName(self.kind, where))):
            if self._catalog:
                self.client.get("/schemas", {"catalog_name": self._catalog, **_PAGED})
            else:
                self.client.get("/catalogs", _PAGED)
        return f"{self.client.title} answers"

    def close(self) -> None:
        """Closes connections."""
        self.client.close()

    def _entries(self, kind: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        for page in self.client.pages(f"/{kind}", {**query, **_PAGED}):
            yield from entries(page, kind)

    def _tables(self, schema: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
        query = {"catalog_name": schema[0], "schema_name": schema[1]}
        return self._entries("tables", {**query, "omit_columns": "true"})

    def _table(self, name: CatalogName, entry: Mapping[str, Any]) -> CatalogTable:
        properties = texts(entry.get("properties"))
        table_id = text(entry.get("table_id"))
        updated = entry.get("updated_at")
        return delta_table(
            name,
            entry.get("storage_location"),
            table_id=table_id,
            entity_tag=None if updated is None else str(updated),
            owner=text(entry.get("owner")),
            comment=text(entry.get("comment")),
            catalog_managed=any(key in properties for key in _MANAGED),
            # Only Databricks has these types.
            is_shallow_clone=str(entry.get("table_type")).endswith("_SHALLOW_CLONE"),
            vends_credentials=self._vends and table_id is not None,
            properties=properties,
            # Only Databricks has metastores, and tags.
            further=self._further if entry.get("metastore_id") else frozenset(),
        )


def _passed_over(entry: Mapping[str, Any]) -> PassedOver | None:
    """Why a table is not listed; None for a Delta table."""
    if entry.get("deleted_at"):
        return PassedOver.DELETED
    # Pipelines of Databricks maintain the last two.
    if str(entry.get("table_type")) in (
        "VIEW",
        "METRIC_VIEW",
        "MATERIALIZED_VIEW",
        "STREAMING_TABLE",
    ):
        return PassedOver.VIEW
    is_delta = str(entry.get("data_source_format")).upper() == "DELTA"
    return None if is_delta else PassedOver.OTHER_FORMAT


_TITLE = "Unity Catalog"
_PAGED = {"max_results": "0"}
"""Asks for pages of the server's own size. Without it Databricks sends everything at once, and the
open-source server allows no more than 50 tables a page."""
_MANAGED = ("delta.feature.catalogManaged", "delta.feature.catalogOwned-preview")
"""Properties of tables whose commits go through the catalog."""
