"""Apache Gravitino 1.2 and newer, whose generic lakehouse catalogs can contain Delta tables."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from delta_maintenance.catalogs.catalog import Catalog, Wanted
from delta_maintenance.catalogs.http.authorization import Authorization
from delta_maintenance.catalogs.http.client import (
    MOST_BYTES,
    CatalogClient,
    checked_settings,
    entries,
    segment,
    without_path,
)
from delta_maintenance.catalogs.http.gathering import Gathering, delta_table, text, texts
from delta_maintenance.catalogs.models import CatalogListing, CatalogTable, PassedOver
from delta_maintenance.catalogs.names import CatalogKind, CatalogName
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError, InvalidRequestError
from delta_maintenance.rest.client import HttpSession


class GravitinoCatalog(Catalog):
    """One metalake. The address is that of the server, with or without `/api`.

    The option `metalake` is required. `user` is the name of the caller on a server with simple
    authentication.
    """

    kind = CatalogKind.GRAVITINO

    def __init__(self, settings: CatalogSettings) -> None:
        address = checked_settings(settings, "metalake", "user", title=_TITLE)
        metalake = settings.options.get("metalake")
        if not metalake:
            raise InvalidRequestError(
                "Gravitino needs the name of a metalake", remedy="give the option metalake"
            )
        session = HttpSession(most_bytes=MOST_BYTES)
        user = settings.options.get("user")
        headers = {"Accept": "application/vnd.gravitino.v1+json"}
        if user:
            # The server ignores the password.
            pair = base64.b64encode(f"{user}:-".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        self.client = CatalogClient(
            Authorization(settings, session),
            session,
            address=without_path(address, "/api"),
            title=_TITLE,
            rights="USE_CATALOG, USE_SCHEMA and SELECT_TABLE",
            headers=headers,
        )
        self._root = f"/api/metalakes/{segment(metalake)}/catalogs"
        self._catalog = settings.catalog

    def list(
        self,
        *,
        leads_to: Wanted,
        wanted: Wanted,
        known: Mapping[CatalogName, CatalogTable],
    ) -> CatalogListing:
        """Lists tables: one request per catalog, per schema, and per table.

        Lists contain names only, without anything that says whether a table is still the known
        one.
        """

        def catalogs(_: None) -> Iterator[tuple[str, ...]]:
            if self._catalog:
                answer = self.client.get(f"{self._root}/{segment(self._catalog)}")
                _check_provider(self._catalog, answer.get("catalog"))
                yield (self._catalog,)
                return
            for entry in entries(self.client.get(self._root, {"details": "true"}), "catalogs"):
                name = text(entry.get("name"))
                if name and entry.get("provider") == _PROVIDER and leads_to((name,)):
                    yield (name,)

        def schemas(catalog: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
            for name in self._names(catalog, "schemas"):
                if leads_to((*catalog, name)):
                    yield (*catalog, name)

        def tables(schema: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
            for name in self._names(schema, "tables"):
                if wanted((*schema, name)):
                    yield (*schema, name)
                else:
                    gathering.pass_over(PassedOver.EXCLUDED)

        def load(parts: tuple[str, ...]) -> tuple[()]:
            table = self._load(parts)
            if _is_delta(table):
                gathering.add(parts, partial(_table, CatalogName(self.kind, parts), table))
            else:
                gathering.pass_over(PassedOver.OTHER_FORMAT)
            return ()

        with Gathering(self.client, self.kind) as gathering:
            parts = (self._catalog,) if self._catalog else ()
            level = gathering.each(catalogs, [(parts, None)])
            for step in (schemas, tables):
                level = gathering.each(step, [(name, name) for name in level])
            gathering.each(load, [(name, name) for name in level])
            return gathering.listing()

    def resolve(self, name: CatalogName) -> CatalogTable:
        """Returns one table: one request."""
        if len(name.parts) != 3:
            raise CatalogError(
                f"{name} names no table", remedy="write it like gravitino://CATALOG.SCHEMA.TABLE"
            )
        with self.client.naming(str(name)):
            table = self._load(name.parts)
        if not _is_delta(table):
            raise CatalogError(f"{name} is no Delta table in its catalog")
        return _table(name, table)

    def check(self) -> str:
        """Requests the catalog, or the list of catalogs."""
        parts = (self._catalog,) if self._catalog else ()
        with self.client.naming(str(CatalogName(self.kind, parts))):
            answer = self.client.get("/".join([self._root, *map(segment, parts)]))
        if self._catalog:
            _check_provider(self._catalog, answer.get("catalog"))
        return f"{self.client.title} answers"

    def close(self) -> None:
        """Closes connections."""
        self.client.close()

    def _names(self, parts: tuple[str, ...], kind: str) -> Sequence[str]:
        found = entries(self.client.get(f"{self._path(parts)}/{kind}"), "identifiers")
        return [name for entry in found if (name := text(entry.get("name")))]

    def _load(self, parts: tuple[str, ...]) -> Mapping[str, Any]:
        table = self.client.get(self._path(parts)).get("table")
        return table if isinstance(table, Mapping) else {}

    def _path(self, parts: tuple[str, ...]) -> str:
        steps = zip(("", "/schemas", "/tables"), parts, strict=False)
        return self._root + "".join(f"{step}/{segment(part)}" for step, part in steps)


def _check_provider(catalog: str, entry: object) -> None:
    provider = entry.get("provider") if isinstance(entry, Mapping) else None
    if provider != _PROVIDER:
        raise CatalogError(
            f"the catalog {catalog} of Gravitino has the provider {provider!r}",
            remedy=f"name one with the provider {_PROVIDER}, or that catalog itself",
        )


def _is_delta(table: Mapping[str, Any]) -> bool:
    return texts(table.get("properties")).get("format", "").lower() == "delta"


def _table(name: CatalogName, table: Mapping[str, Any]) -> CatalogTable:
    properties = texts(table.get("properties"))
    return delta_table(
        name, properties.get("location"), comment=text(table.get("comment")), properties=properties
    )


_TITLE = "Gravitino"
_PROVIDER = "lakehouse-generic"
