"""Gravitino: catalogs, schemas and tables of one metalake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delta_maintenance.catalogs.names import CatalogKind
from tests.support.catalogs.catalog_server import Answer, CatalogServer, Entry, Query, Refusal

_AUDIT = {"creator": "someone", "createTime": "2026-01-01T00:00:00Z"}


class GravitinoServer(CatalogServer):
    """A server with the metalake `lake`. Its lists have no pages."""

    kind = CatalogKind.GRAVITINO
    profile = "gravitino"
    error_model = "GravitinoErrorResponse"
    token_path = "/idp/token"
    options = {"metalake": "lake"}

    def __init__(self) -> None:
        super().__init__()
        self.providers: dict[str, str] = {}
        """Providers of catalogs other than generic lakehouses."""
        self.has_authorization = True
        """Without it, which is the default of a server, there are no owners."""

    def route(self, method: str, steps: Sequence[str], query: Query, headers: Any) -> Answer:
        match [method, *steps]:
            case ["GET", "api", "metalakes", "lake", "owners", "table", full_name]:
                return "GravitinoOwnerResponse", self._owner(tuple(full_name.split(".")))
            case ["GET", "api", "metalakes", "lake", "objects", "table", full_name, "tags"]:
                assert query.get("details") == "true"
                return "GravitinoTagListResponse", self._tags(tuple(full_name.split(".")))
        if method != "GET" or list(steps[:4]) != ["api", "metalakes", "lake", "catalogs"]:
            raise Refusal(404, "NoSuchMetalakeException", "there is no such metalake")
        match steps[4:]:
            case []:
                self.check()
                if query.get("details") != "true":
                    return self._identifiers((), self.catalogs())
                found = [self._catalog(name) for name in self.catalogs()]
                return "GravitinoCatalogListResponse", {"code": 0, "catalogs": found}
            case [catalog]:
                self.check(catalog)
                if catalog not in self.catalogs():
                    raise Refusal(404, "NoSuchCatalogException", "there is no such catalog")
                body = {"code": 0, "catalog": self._catalog(catalog)}
                return "GravitinoCatalogResponse", body
            case [catalog, "schemas"]:
                self.check(catalog)
                names = sorted(parts[1] for parts in self.namespaces if parts[0] == catalog)
                return self._identifiers((catalog,), names)
            case [catalog, "schemas", schema, "tables"]:
                names = sorted(self.tables((catalog, schema)))
                return self._identifiers((catalog, schema), names)
            case [catalog, "schemas", schema, "tables", name]:
                self.check(catalog, schema, name)
                entry = self.tables((catalog, schema)).get(name)
                if entry is None:
                    raise Refusal(404, "NoSuchTableException", "there is no such table")
                return "GravitinoTableResponse", {"code": 0, "table": _table(name, entry)}
        raise Refusal(404, "NotFound", "no such path")

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return {"code": 1003, "type": refusal.code, "message": refusal.message}

    def _owner(self, parts: tuple[str, ...]) -> dict[str, Any]:
        if not self.has_authorization:
            raise Refusal(405, "UnsupportedOperationException", "authorization is disabled")
        self.check("tags", *parts)
        owner = self.owners.get(parts)
        return {"code": 0, "owner": owner and {"name": owner, "type": "user"}}

    def _tags(self, parts: tuple[str, ...]) -> dict[str, Any]:
        self.check("tags", *parts)
        tags = [
            {
                "name": name,
                "comment": "",
                "properties": {},
                "audit": _AUDIT,
                "inherited": length < len(parts),
            }
            for length in range(1, len(parts) + 1)
            for name in self.tags.get(parts[:length], {})
        ]
        return {"code": 0, "tags": tags}

    def _catalog(self, name: str) -> dict[str, Any]:
        provider = self.providers.get(name, "lakehouse-generic")
        return {
            "name": name,
            "type": "relational",
            "provider": provider,
            "comment": "",
            "properties": {},
            "audit": _AUDIT,
        }

    def _identifiers(self, above: tuple[str, ...], names: Sequence[str]) -> Answer:
        found = [{"namespace": ["lake", *above], "name": name} for name in names]
        return "GravitinoEntityListResponse", {"code": 0, "identifiers": found}


def _table(name: str, entry: Entry) -> dict[str, Any]:
    properties = {**entry.properties, "format": entry.format.lower(), "external": "true"}
    if entry.location is not None:
        properties["location"] = entry.location
    column = {"name": "id", "type": "long", "nullable": True, "autoIncrement": False}
    return {
        "name": name,
        "comment": entry.comment,
        "columns": [column],
        "properties": properties,
        "audit": _AUDIT,
        "distribution": {"strategy": "none", "number": 0, "funcArgs": []},
        "sortOrders": [],
        "partitioning": [],
        "indexes": [],
    }
