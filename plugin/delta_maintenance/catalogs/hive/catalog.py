"""Hive Metastore as a catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs.catalog import (
    Catalog,
    CatalogListing,
    CatalogTable,
    PartFilter,
    PassedOver,
    catalog_error,
)
from delta_maintenance.catalogs.hive.client import HiveClient, HiveFailure, Server, Struct, Value
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.catalogs.spark_entries import (
    EntryListing,
    SparkEntry,
    is_view,
    three_parts,
    where_of,
)
from delta_maintenance.errors import CatalogError, InvalidRequestError

BATCH = 300
"""The number of tables of one request for descriptions."""
Request: TypeAlias = dict[int, Value]
_MOST_SPLITS = 64
_PORT = 9083
_OWN = "hive"
"""The metastore's own catalog. Calls that name it work only from version 3 on."""
_CAPABILITIES = {1: [2]}
"""Without the capability for insert-only tables, one such table makes a whole batch fail."""


class HiveCatalog(Catalog):
    """One catalog of a metastore; by default its own, whose name is left out of names.

    Options: `user`, the name for the metastore's authorization; `tls`, `true` or `false`. The
    address may consist of several, divided by commas.
    """

    kind = CatalogKind.HIVE

    def __init__(self, settings: CatalogSettings) -> None:
        options = settings.only("user", "tls", "kerberos")
        if settings.flag("kerberos"):
            raise InvalidRequestError(
                "metastores that require Kerberos are not supported",
                remedy="list the tables of the policy by their addresses",
            )
        self._catalog = settings.catalog
        servers = _servers(settings.address)
        self._at = ", ".join(f"{server.host}:{server.port}" for server in servers)
        self._client = HiveClient(servers, user=options.get("user"), tls=bool(settings.flag("tls")))

    def list(
        self,
        *,
        leads_to: PartFilter,
        includes: PartFilter,
        known_tables: Mapping[CatalogName, CatalogTable],
    ) -> CatalogListing:
        # One request names all tables of all databases, so that its number does not grow with that
        # of the databases.
        before = self._client.requests
        try:
            fields = self._client.call(
                "get_table_meta", {1: self._pattern("*"), 2: "*", 3: []}, ("MetaException",)
            )
        except HiveFailure as failure:
            raise self._error(failure, ()) from None
        listing = EntryListing(self.kind)
        chosen: dict[str, list[str]] = {}
        for meta in fields.get(0, []):
            database, table = str(meta[1]), str(meta[2])
            if not leads_to(self._parts(database)):
                continue
            if not includes(self._parts(database, table)):
                listing.passed_over[PassedOver.NOT_IN_POLICY] += 1
            elif is_view(str(meta.get(3, ""))):
                listing.passed_over[PassedOver.VIEW] += 1
            else:
                chosen.setdefault(database, []).append(table)
        for database, names in sorted(chosen.items()):
            self._describe(database, names, listing)
        return listing.result(requests=self._client.requests - before)

    def resolve(self, name: CatalogName) -> CatalogTable:
        catalog, database, table = three_parts(name, self._catalog)
        request: Request = {1: database, 2: table, 3: _CAPABILITIES, **_naming(catalog)}
        try:
            fields = self._client.call(
                "get_table_req", {1: request}, ("MetaException", "NoSuchObjectException")
            )
        except HiveFailure as failure:
            raise self._error(failure, name.parts) from None
        return _entry(fields[0][1], name.parts).delta_table()

    def check(self) -> str:
        try:
            fields = self._client.call("get_all_databases", {}, ("MetaException",))
        except HiveFailure as failure:
            raise self._error(failure, ()) from None
        return f"the metastore answers and names {len(fields.get(0, []))} databases"

    def close(self) -> None:
        self._client.close()

    def _describe(self, database: str, names: Sequence[str], listing: EntryListing) -> None:
        """Describes tables, in batches.

        A table that makes its batch fail is found by dividing the batch, up to a number of times
        that a database with few such tables needs.
        """
        pending = [names[at : at + BATCH] for at in range(0, len(names), BATCH)]
        splits = 0
        while pending:
            batch = pending.pop()
            try:
                for entry in self._entries(database, batch):
                    listing.put(entry)
            except HiveFailure as failure:
                # Without an answer, the metastore is to blame and not a table.
                if len(batch) > 1 and splits < _MOST_SPLITS and not failure.is_unsure:
                    splits += 1
                    middle = len(batch) // 2
                    pending += [batch[:middle], batch[middle:]]
                    continue
                name_parts = self._parts(database, *(batch if len(batch) == 1 else ()))
                listing.add_failure(name_parts, self._error(failure, name_parts))
                if failure.is_unsure:
                    return

    def _entries(self, database: str, names: Sequence[str]) -> Iterable[SparkEntry]:
        request: Request = {1: database, 2: names, 3: _CAPABILITIES, **_naming(self._catalog)}
        fields = self._client.call("get_table_objects_by_name_req", {1: request}, _BATCH_EXCEPTIONS)
        return [_entry(table, self._parts(database, table[1])) for table in fields[0].get(1, [])]

    def _parts(self, *below: str) -> tuple[str, ...]:
        return (self._catalog, *below) if self._catalog else below

    def _pattern(self, databases: str) -> str:
        if self._catalog in (None, _OWN):
            return databases
        return f"@{self._catalog}#{databases}"

    def _error(self, failure: HiveFailure, name_parts: tuple[str, ...]) -> CatalogError:
        return catalog_error(
            failure,
            server=f"{failure.service} at {self._at}",
            where=where_of(self.kind, name_parts),
            needs="the right to read the metadata",
        )


def _entry(table: Struct, name_parts: tuple[str, ...]) -> SparkEntry:
    """Converts the struct `Table`."""
    parameters: dict[str, str] = table.get(9) or {}
    storage: Struct = table.get(7) or {}
    return SparkEntry(
        kind=CatalogKind.HIVE,
        parts=name_parts,
        is_view=is_view(str(table.get(12, ""))),
        parameters=parameters,
        location=storage.get(2),
        serde_parameters=(storage.get(7) or {}).get(3) or {},
        owner=table.get(3),
        comment=parameters.get("comment"),
    )


def _naming(catalog: str | None) -> dict[int, str]:
    return {} if catalog in (None, _OWN) else {4: str(catalog)}


def _servers(address: str | None) -> Sequence[Server]:
    """Parses `thrift://HOST:9083`, or several of them."""
    if not address:
        raise InvalidRequestError(
            "the metastore has no address",
            remedy="give one like thrift://HOST, or set HIVE_METASTORE_URI",
        )
    servers = []
    for text in address.split(","):
        try:
            url = urlsplit(text.strip())
            host, port = url.hostname, url.port or _PORT
        except ValueError:
            host = None
        if not host or url.scheme != "thrift" or url.path.strip("/") or "@" in url.netloc:
            # The value is not repeated, because it may contain a password.
            raise InvalidRequestError(
                "the address of the metastore is not of the form thrift://HOST",
                remedy="correct the address, or HIVE_METASTORE_URI; divide several by commas",
            )
        servers.append(Server(host, port))
    return servers


_BATCH_EXCEPTIONS = ("MetaException", "InvalidOperationException", "UnknownDBException")
