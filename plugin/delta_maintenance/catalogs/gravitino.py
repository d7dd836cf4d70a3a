"""Apache Gravitino 1.2 and newer, whose generic lakehouse catalogs can contain Delta tables."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs.catalog import (
    Aspect,
    Catalog,
    CatalogListing,
    CatalogTable,
    PartFilter,
    PassedOver,
)
from delta_maintenance.catalogs.credentials import texts
from delta_maintenance.catalogs.http.authorization import Authorization, RequestRefused
from delta_maintenance.catalogs.http.client import (
    MOST_BYTES,
    CatalogClient,
    checked_settings,
    entries,
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
from delta_maintenance.errors import CatalogError, InvalidRequestError
from delta_maintenance.rest.client import HttpSession


class GravitinoCatalog(Catalog):
    """One metalake. The address is that of the server, with or without `/api`.

    The option `metalake` is required. `user` is the name of the caller on a server with simple
    authentication.
    """

    kind = CatalogKind.GRAVITINO

    def __init__(self, settings: CatalogSettings) -> None:
        address = checked_settings(settings, "metalake", "user", "tags", title=_TITLE)
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
        self._metalake = f"/api/metalakes/{segment(metalake)}"
        self._root = f"{self._metalake}/catalogs"
        self._catalog = settings.catalog
        self._further, self.describes_all = further_aspects(settings, frozenset(Aspect))

    def list(
        self,
        *,
        leads_to: PartFilter,
        includes: PartFilter,
        known_tables: Mapping[CatalogName, CatalogTable],
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
                if includes((*schema, name)):
                    yield (*schema, name)
                else:
                    gathering.pass_over(PassedOver.NOT_IN_POLICY)

        def load(name_parts: tuple[str, ...]) -> tuple[()]:
            table = self._load(name_parts)
            if _is_delta(table):
                gathering.add(
                    name_parts, partial(self._table, CatalogName(self.kind, name_parts), table)
                )
            else:
                gathering.pass_over(PassedOver.OTHER_FORMAT)
            return ()

        with Gathering(self.client, self.kind) as gathering:
            name_parts = (self._catalog,) if self._catalog else ()
            level = gathering.each(catalogs, [(name_parts, None)])
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
        return self._table(name, table)

    def describe(
        self, tables: Sequence[CatalogTable], aspects: frozenset[Aspect]
    ) -> CatalogListing:
        """Requests owners, and tags with those of the schema and of the catalog: one request per
        table for each of both.
        """

        without: set[Aspect] = set()

        def one(table: CatalogTable) -> Iterator[CatalogTable]:
            requested = table.further & aspects - without
            if Aspect.OWNER in requested:
                try:
                    table = replace(table, owner=self._owner(table.name))
                except RequestRefused as failure:
                    if failure.status != 405:
                        raise
                    # A server without authorization, which is the default, has no owners.
                    without.add(Aspect.OWNER)
            if Aspect.TAGS in requested:
                table = replace(table, tags=self._tags(table.name))
            yield table

        subject = "the owner and the tags"
        with Gathering(self.client, self.kind, subject=subject, needs=_FURTHER_RIGHTS) as gathering:
            described_tables = gathering.each(one, [(table.name.parts, table) for table in tables])
            return replace(gathering.part(described_tables), without=frozenset(without))

    def _owner(self, name: CatalogName) -> str | None:
        answer = self.client.get(f"{self._metalake}/owners/table/{_full_name(name)}")
        if answer.get("owner") is None:
            return None
        (owner,) = texts_of({"owners": [answer["owner"]]}, "owners", "name", f"the owner of {name}")
        return owner["name"]

    def _tags(self, name: CatalogName) -> Mapping[str, str]:
        path = f"{self._metalake}/objects/table/{_full_name(name)}/tags"
        answer = self.client.get(path, {"details": "true"})
        # A tag has no value; those of the schema and the catalog are in the list.
        return {tag["name"]: "" for tag in texts_of(answer, "tags", "name", f"the tags of {name}")}

    def hidden_tags(self, names: AbstractSet[str]) -> frozenset[str]:
        """Requests each tag. Without the right APPLY_TAG, lists omit it without a word."""

        def is_hidden(name: str) -> bool:
            try:
                self.client.get(f"{self._metalake}/tags/{segment(name)}")
            except RequestRefused as failure:
                if failure.status != 403 and not failure.missing:
                    raise
                return failure.status == 403
            return False

        with self.client.naming("the tags of conditions"):
            return frozenset(filter(is_hidden, sorted(names)))

    def check(self) -> str:
        """Requests the catalog, or the list of catalogs."""
        name_parts = (self._catalog,) if self._catalog else ()
        with self.client.naming(str(CatalogName(self.kind, name_parts))):
            answer = self.client.get("/".join([self._root, *map(segment, name_parts)]))
        if self._catalog:
            _check_provider(self._catalog, answer.get("catalog"))
        return f"{self.client.title} answers"

    def close(self) -> None:
        """Closes connections."""
        self.client.close()

    def _names(self, name_parts: tuple[str, ...], kind: str) -> Sequence[str]:
        identifiers = entries(self.client.get(f"{self._path(name_parts)}/{kind}"), "identifiers")
        return [name for entry in identifiers if (name := text(entry.get("name")))]

    def _load(self, name_parts: tuple[str, ...]) -> Mapping[str, Any]:
        table = self.client.get(self._path(name_parts)).get("table")
        return table if isinstance(table, Mapping) else {}

    def _table(self, name: CatalogName, table: Mapping[str, Any]) -> CatalogTable:
        properties = texts(table.get("properties"))
        return delta_table(
            name,
            properties.get("location", "").removesuffix("/"),  # which the server adds
            comment=text(table.get("comment")),
            properties=properties,
            further=self._further,
        )

    def _path(self, name_parts: tuple[str, ...]) -> str:
        steps = zip(("", "/schemas", "/tables"), name_parts, strict=False)
        return self._root + "".join(f"{step}/{segment(name_part)}" for step, name_part in steps)


def _check_provider(catalog: str, entry: object) -> None:
    provider = entry.get("provider") if isinstance(entry, Mapping) else None
    if provider != _PROVIDER:
        raise CatalogError(
            f"the catalog {catalog} of Gravitino has the provider {provider!r}",
            remedy=f"name one with the provider {_PROVIDER}, or that catalog itself",
        )


def _is_delta(table: Mapping[str, Any]) -> bool:
    return texts(table.get("properties")).get("format", "").lower() == "delta"


def _full_name(name: CatalogName) -> str:
    if any("." in name_part for name_part in name.parts):
        # It could not be told from the name of another table.
        raise CatalogError(
            f"the owner and the tags of {name} cannot be requested",
            remedy="rename it, or omit conditions on owner and tags",
        )
    return segment(".".join(name.parts))


_TITLE = "Gravitino"
_FURTHER_RIGHTS = "the right to read the table and its tags"
_PROVIDER = "lakehouse-generic"
