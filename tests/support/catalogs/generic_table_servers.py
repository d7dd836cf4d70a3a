"""Lakekeeper and Polaris: generic tables beside the namespaces of Iceberg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import NAMESPACE_URL, uuid5

from delta_maintenance.address import CatalogKind
from tests.support.catalogs.catalog_server import (
    Answer,
    CatalogServer,
    Entry,
    Parts,
    Query,
    Refusal,
)


class _GenericTables(CatalogServer):
    namespaces_path: ClassVar[list[str]]
    tables_path: ClassVar[list[str]]
    warehouses_path: ClassVar[list[str]]
    delegation: ClassVar[str]
    models: ClassVar[str]
    error_model = "IcebergErrorResponse"

    def prefix(self, warehouse: str) -> str:
        """What stands for a warehouse in paths."""
        return warehouse

    def identifier(self, parts: Parts, entry: Entry) -> dict[str, Any]:
        """A table as lists name it."""
        return {"namespace": list(parts[1:-1]), "name": parts[-1]}

    def described(self, parts: Parts, entry: Entry) -> dict[str, Any]:
        """A table as it is loaded."""
        fields = {
            "name": parts[-1],
            "format": entry.format.lower(),
            "base-location": entry.location,
            "doc": entry.comment,
            "properties": entry.properties,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def access(self, parts: Parts) -> dict[str, Any]:
        """The vended credentials of a loaded table."""
        return {}

    def warehouse_list(self) -> Answer:
        """The list of warehouses."""
        raise NotImplementedError

    def error(self, refusal: Refusal) -> dict[str, Any]:
        model = {"message": refusal.message, "type": refusal.code, "code": refusal.status}
        return {"error": model}

    def route(self, method: str, steps: Sequence[str], query: Query, headers: Any) -> Answer:
        if list(steps) == self.warehouses_path:
            self.check()
            return self.warehouse_list()
        for root, answer in (
            (self.tables_path, self._tables_route),
            (self.namespaces_path, self._namespaces_route),
        ):
            if method == "GET" and list(steps[: len(root) + 1]) == [*root, "v1"]:
                return answer(list(steps[len(root) + 1 :]), query, headers)
        raise Refusal(404, "NotFound", "no such path")

    def _namespaces_route(self, steps: list[str], query: Query, headers: Any) -> Answer:
        match steps:
            case ["config"]:
                warehouse = query["warehouse"]
                self.check(warehouse)
                if warehouse not in self.catalogs():
                    raise Refusal(404, "NotFoundException", "there is no such warehouse")
                overrides = {"prefix": self.prefix(warehouse)}
                return "CatalogConfig", {"overrides": overrides, "defaults": {}}
            case [prefix, "namespaces"]:
                above = self._warehouse(prefix), *_levels(query.get("parent", ""))
                self.check(*above)
                below = sorted(parts for parts in self.namespaces if parts[:-1] == above)
                page, token = self.page(below, query.get("pageToken"))
                found = [list(parts[1:]) for parts in page]
                return "ListNamespacesResponse", {"namespaces": found, "next-page-token": token}
        raise Refusal(404, "NotFound", "no such path")

    def _tables_route(self, steps: list[str], query: Query, headers: Any) -> Answer:
        match steps:
            case [prefix, "namespaces", levels, "generic-tables"]:
                namespace = self._warehouse(prefix), *_levels(levels)
                items = [
                    self.identifier((*namespace, name), entry)
                    for name, entry in sorted(self.tables(namespace).items())
                    if not entry.deleted
                ]
                page, token = self.list_page(items, query)
                body: dict[str, Any] = {"identifiers": list(page)}
                if token:
                    body["next-page-token"] = token
                return f"{self.models}ListGenericTablesResponse", body
            case [prefix, "namespaces", levels, "generic-tables", name]:
                namespace = self._warehouse(prefix), *_levels(levels)
                self.check(*namespace, name)
                entry = self.tables(namespace).get(name)
                if entry is None or entry.deleted:
                    raise Refusal(404, "NoSuchTableException", "there is no such table")
                body = {"table": self.described((*namespace, name), entry)}
                if headers.get(self.delegation) == "vended-credentials":
                    body |= self.access((*namespace, name))
                return f"{self.models}LoadGenericTableResponse", body
        raise Refusal(404, "NotFound", "no such path")

    def list_page(self, items: Sequence[Any], query: Query) -> tuple[Sequence[Any], str | None]:
        """One page of the tables of a namespace."""
        return self.page(items, query.get("pageToken"))

    def _warehouse(self, prefix: str) -> str:
        for name in self.catalogs():
            if self.prefix(name) == prefix:
                return name
        raise Refusal(404, "NotFoundException", "there is no such warehouse")


class LakekeeperServer(_GenericTables):
    """Lakekeeper: lists name the format and the ID; tables come with credentials."""

    kind = CatalogKind.LAKEKEEPER
    profile = "lakekeeper"
    token_path = "/idp/token"
    namespaces_path = ["catalog"]
    tables_path = ["lakekeeper"]
    warehouses_path = ["management", "v1", "warehouse"]
    delegation = "X-Iceberg-Access-Delegation"
    models = "Lakekeeper"

    def prefix(self, warehouse: str) -> str:
        return str(uuid5(NAMESPACE_URL, warehouse))

    def identifier(self, parts: Parts, entry: Entry) -> dict[str, Any]:
        return {
            **super().identifier(parts, entry),
            "format": entry.format.lower(),
            "id": str(uuid5(NAMESPACE_URL, f"{parts}{entry.location}")),
        }

    def described(self, parts: Parts, entry: Entry) -> dict[str, Any]:
        return {**super().described(parts, entry), "protected": False}

    def access(self, parts: Parts) -> dict[str, Any]:
        return {"config": {"client.region": "local"}, "storage-credentials": self.credentials}

    def warehouse_list(self) -> Answer:
        warehouses = [{"name": name, "id": self.prefix(name)} for name in self.catalogs()]
        return "Warehouses", {"warehouses": warehouses}


class PolarisServer(_GenericTables):
    """Polaris: lists name nothing but names, and tables come in one page."""

    kind = CatalogKind.POLARIS
    profile = "polaris"
    token_path = "/api/catalog/v1/oauth/tokens"
    namespaces_path = ["api", "catalog"]
    tables_path = ["api", "catalog", "polaris"]
    warehouses_path = ["api", "management", "v1", "catalogs"]
    delegation = "Polaris-Generic-Table-Access-Delegation"
    models = "Polaris"

    def access(self, parts: Parts) -> dict[str, Any]:
        # Servers until at least August 2026 ignore the header.
        return {"storage-access-configs": self.credentials} if self.credentials else {}

    def warehouse_list(self) -> Answer:
        found = [
            {
                "type": "INTERNAL",
                "name": name,
                "properties": {"default-base-location": "s3://bucket"},
                "storageConfigInfo": {"storageType": "S3", "allowedLocations": []},
            }
            for name in self.catalogs()
        ]
        return "Catalogs", {"catalogs": found}

    def list_page(self, items: Sequence[Any], query: Query) -> tuple[Sequence[Any], str | None]:
        return items, None


def _levels(text: str) -> list[str]:
    return text.split("\x1f") if text else []
