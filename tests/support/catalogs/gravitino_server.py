"""Gravitino: catalogs, schemas and tables of one metalake.

Status codes, types and bodies are those of a server 1.3.1 that was built from its source and asked
for the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delta_maintenance.address import CatalogKind
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
        self.not_in_use: frozenset[str] = frozenset()
        """Catalogs that an administrator has switched off."""
        self.hidden_tags: frozenset[str] = frozenset()
        """Tags on which the caller has no right, which lists omit."""

    def route(self, method: str, steps: Sequence[str], query: Query, headers: Any) -> Answer:
        match [method, *steps]:
            case ["GET", "api", "metalakes", "lake", "owners", "table", full_name]:
                return "GravitinoOwnerResponse", self._owner(tuple(full_name.split(".")))
            case ["GET", "api", "metalakes", "lake", "objects", "table", full_name, "tags"]:
                assert query.get("details") == "true"
                return "GravitinoTagListResponse", self._tags(tuple(full_name.split(".")))
            case ["GET", "api", "metalakes", "lake", "tags", name]:
                return "GravitinoTagResponse", {"code": 0, "tag": self._known_tag(name)}
        if method != "GET" or [*steps[:2], *steps[3:4]] != ["api", "metalakes", "catalogs"]:
            raise Refusal(404, "NotFound", "no such path")
        if steps[2] != "lake":
            raise _missing("Metalake", steps[2:3])
        match steps[4:]:
            case []:
                self.check()
                if query.get("details") != "true":
                    return self._identifiers((), self.catalogs())
                found = [self._catalog(name) for name in self.catalogs()]
                return "GravitinoCatalogListResponse", {"code": 0, "catalogs": found}
            case [catalog]:
                self._require_catalog(catalog)
                body = {"code": 0, "catalog": self._catalog(catalog)}
                return "GravitinoCatalogResponse", body
            case [catalog, "schemas"]:
                self._require_in_use(catalog)
                names = sorted(parts[1] for parts in self.namespaces if parts[0] == catalog)
                return self._identifiers((catalog,), names)
            case [catalog, "schemas", schema, "tables"]:
                self._require_in_use(catalog)
                self.check(catalog, schema)
                if (catalog, schema) not in self.namespaces:
                    raise _missing("Schema", (catalog, schema))
                names = sorted(self.tables((catalog, schema)))
                return self._identifiers((catalog, schema), names)
            case [catalog, "schemas", schema, "tables", name]:
                self._require_in_use(catalog)
                self.check(catalog, schema)
                self.check(catalog, schema, name)
                # A missing schema is not told from a missing table.
                entry = self.namespaces.get((catalog, schema), {}).get(name)
                if entry is None:
                    raise _missing("Table", (catalog, schema, name))
                return "GravitinoTableResponse", {"code": 0, "table": _table(name, entry)}
        raise Refusal(404, "NotFound", "no such path")

    def error(self, refusal: Refusal) -> dict[str, Any]:
        code = _CODES.get(refusal.status, 1002)
        body = {"code": code, "type": refusal.code, "message": refusal.message}
        # Refusals of rights and of owners come without the stack.
        return (
            body if refusal.status in (403, 405) else {**body, "stack": [refusal.message, "\tat"]}
        )

    def _require_catalog(self, catalog: str) -> None:
        self.check(catalog)
        if catalog not in self.catalogs():
            raise _missing("Catalog", (catalog,))

    def _require_in_use(self, catalog: str) -> None:
        self._require_catalog(catalog)
        if catalog in self.not_in_use:
            problem = f"The catalog {catalog} is not in use"
            raise Refusal(409, "CatalogNotInUseException", f"Failed to operate, reason [{problem}]")

    def _require_table(self, parts: tuple[str, ...]) -> None:
        self._require_in_use(parts[0])
        if parts[-1] not in self.namespaces.get(parts[:-1], {}):
            raise _missing("MetadataObject", parts)

    def _owner(self, parts: tuple[str, ...]) -> dict[str, Any]:
        if not self.has_authorization:
            problem = "You should set 'gravitino.authorization.enable' to true"
            raise Refusal(405, "UnsupportedOperationException", problem)
        self._require_table(parts)
        self.check("tags", *parts)
        owner = self.owners.get(parts)
        return {"code": 0, "owner": owner and {"name": owner, "type": "user"}}

    def _tags(self, parts: tuple[str, ...]) -> dict[str, Any]:
        self._require_table(parts)
        self.check("tags", *parts)
        # A tag of the table and of its schema is stated once, as that of the table.
        inherited = {
            name: length < len(parts)
            for length in range(1, len(parts) + 1)
            for name in self.tags.get(parts[:length], {})
            if name not in self.hidden_tags
        }
        return {"code": 0, "tags": [_tag(name, inherited[name]) for name in inherited]}

    def _known_tag(self, name: str) -> dict[str, Any]:
        self.check("tags", name)
        if name in self.hidden_tags:
            problem = f"User 'me' is not authorized to perform operation 'getTag' on '{name}'"
            raise Refusal(403, "ForbiddenException", problem)
        if all(name not in tags for tags in self.tags.values()):
            raise _missing("Tag", (name,))
        return _tag(name, None)

    def _catalog(self, name: str) -> dict[str, Any]:
        provider = self.providers.get(name, "lakehouse-generic")
        return {
            "name": name,
            "type": "relational",
            "provider": provider,
            "comment": "",
            "properties": {"in-use": "false" if name in self.not_in_use else "true"},
            "audit": _AUDIT,
        }

    def _identifiers(self, above: tuple[str, ...], names: Sequence[str]) -> Answer:
        found = [{"namespace": ["lake", *above], "name": name} for name in names]
        return "GravitinoEntityListResponse", {"code": 0, "identifiers": found}


_CODES = {401: 1011, 403: 1008, 404: 1003, 405: 1006, 409: 1009}


def _missing(kind: str, parts: Sequence[str]) -> Refusal:
    problem = f"{kind} {'.'.join(parts)} does not exist"
    return Refusal(404, f"NoSuch{kind}Exception", f"Failed to operate, reason [{problem}]")


def _tag(name: str, inherited: bool | None) -> dict[str, Any]:
    return {"name": name, "comment": "", "properties": {}, "audit": _AUDIT, "inherited": inherited}


def _table(name: str, entry: Entry) -> dict[str, Any]:
    properties = {**entry.properties, "format": entry.format.lower(), "external": "true"}
    if entry.location is not None:
        # The server adds the slash.
        properties["location"] = entry.location.rstrip("/") + "/"
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
