"""AWS Glue as a catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from delta_maintenance.catalogs.catalog import Catalog, Wanted
from delta_maintenance.catalogs.failure import catalog_error
from delta_maintenance.catalogs.glue.client import PLACES, SECRETS, GlueClient, GlueFailure
from delta_maintenance.catalogs.models import CatalogListing, CatalogTable, PassedOver
from delta_maintenance.catalogs.names import CatalogKind, CatalogName
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.catalogs.spark_entries import (
    EntryListing,
    SparkEntry,
    is_view,
    three_parts,
    where_of,
)
from delta_maintenance.errors import CatalogError

_PAGE = 100
"""The most that Glue returns at once."""
_MOST_PAGES = 10_000
"""The number of pages of a list that are requested."""
_PARALLEL = 8
"""Databases that are listed at the same time."""


class GlueCatalog(Catalog):
    """The databases of one catalog ID; by default those of the caller's account.

    Options: `region`, `profile`, `access_key_id`, `secret_access_key`, `session_token`. The address
    is that of another endpoint than the region's own.
    """

    kind = CatalogKind.GLUE

    def __init__(self, settings: CatalogSettings) -> None:
        options = settings.only(*SECRETS, *PLACES)
        self._catalog = settings.catalog
        self._client = GlueClient(options, endpoint=settings.address, connections=_PARALLEL)

    def list(
        self, *, leads_to: Wanted, wanted: Wanted, known: Mapping[CatalogName, CatalogTable]
    ) -> CatalogListing:
        before = self._client.requests
        listing = EntryListing(self.kind)
        databases: list[str] = []
        try:
            for page in self._pages("get_databases"):
                names = [str(each["Name"]) for each in page.get("DatabaseList", [])]
                databases += [name for name in names if leads_to(self._parts(name))]
        except GlueFailure as failure:
            error = self._error(failure, (), "glue:GetDatabases")
            if not databases:
                raise error from None
            listing.failed(self._parts(), error)
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for found in pool.map(lambda name: self._tables_of(name, wanted), databases):
                listing.add(found)
        return listing.result(requests=self._client.requests - before)

    def resolve(self, name: CatalogName) -> CatalogTable:
        catalog, database, table = three_parts(name, self._catalog)
        try:
            found = self._client.call(
                "get_table", CatalogId=catalog, DatabaseName=database, Name=table
            )
        except GlueFailure as failure:
            raise self._error(failure, name.parts, "glue:GetTable") from None
        return _entry(found["Table"], name.parts).delta_table()

    def check(self) -> str:
        try:
            self._client.call("get_databases", CatalogId=self._catalog, MaxResults=1)
        except GlueFailure as failure:
            raise self._error(failure, (), "glue:GetDatabases") from None
        return "Glue answers"

    def close(self) -> None:
        self._client.close()

    def _tables_of(self, database: str, wanted: Wanted) -> EntryListing:
        """Lists one database. Tables of the pages before a failure are kept."""
        listing = EntryListing(self.kind)
        try:
            for page in self._pages("get_tables", DatabaseName=database):
                for table in page.get("TableList", []):
                    parts = self._parts(database, str(table["Name"]))
                    if wanted(parts):
                        listing.put(_entry(table, parts))
                    else:
                        listing.passed_over[PassedOver.NOT_IN_POLICY] += 1
        except GlueFailure as failure:
            parts = self._parts(database)
            error = self._error(failure, parts, "glue:GetTables")
            listing.failed(parts, error)
        return listing

    def _pages(self, method: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yields pages, the empty ones that have a successor too."""
        token: str | None = None
        for _ in range(_MOST_PAGES):
            page = self._client.call(
                method, CatalogId=self._catalog, MaxResults=_PAGE, NextToken=token, **parameters
            )
            yield page
            following = page.get("NextToken") or None
            if following is None:
                return
            if following == token:
                raise GlueFailure(
                    status=None, code="SamePage", detail="a page names itself as next"
                )
            token = following
        raise GlueFailure(
            status=None, code="TooManyPages", detail=f"a list has more than {_MOST_PAGES:,} pages"
        )

    def _parts(self, *below: str) -> tuple[str, ...]:
        return (self._catalog, *below) if self._catalog else below

    def _error(self, failure: GlueFailure, parts: tuple[str, ...], needs: str) -> CatalogError:
        where = where_of(self.kind, parts)
        return catalog_error(failure, server=failure.service, where=where, needs=needs)


def _entry(table: Mapping[str, Any], parts: tuple[str, ...]) -> SparkEntry:
    storage = table.get("StorageDescriptor") or {}
    return SparkEntry(
        kind=CatalogKind.GLUE,
        parts=parts,
        parameters=table.get("Parameters") or {},
        location=storage.get("Location"),
        serde_parameters=(storage.get("SerdeInfo") or {}).get("Parameters") or {},
        owner=table.get("Owner"),
        comment=table.get("Description") or (table.get("Parameters") or {}).get("comment"),
        entity_tag=table.get("VersionId"),
        # A resource link is a second name of a table.
        is_view=bool(table.get("TargetTable")) or is_view(table.get("TableType") or ""),
    )
