"""Unity Catalog: the open-source server and Databricks, as far as their lists differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import NAMESPACE_URL, uuid5

from delta_maintenance.address import CatalogKind
from tests.support.catalogs.catalog_server import Answer, CatalogServer, Entry, Query, Refusal


class UnityServer(CatalogServer):
    """The open-source server."""

    kind = CatalogKind.UNITY
    profile = "unity-catalog"
    error_model = "UnityError"
    token_path = "/oidc/v1/token"
    models = ""
    most_results: int | None = 50
    temporary_credentials: ClassVar[dict[str, Any]] = {
        "aws_temp_credentials": {
            "access_key_id": "key",
            "secret_access_key": "secret",
            "session_token": "session",
        },
        "expiration_time": 1_800_000_000_000,
        "url": "s3://b",
    }
    any_case = False
    """Whether tables are found by their names in any case."""
    columns = ({"name": "id", "type_name": "LONG", "type_text": "bigint", "position": 0},)

    def route(self, method: str, steps: Sequence[str], query: Query, headers: Any) -> Answer:
        if list(steps[:3]) != ["api", "2.1", "unity-catalog"]:
            raise Refusal(404, "NOT_FOUND", "no such path")
        match [method, *steps[3:]]:
            case ["POST", "temporary-table-credentials"]:
                return "TemporaryCredentials", self.temporary_credentials
            case ["GET", "catalogs"]:
                return self._list("ListCatalogsResponse", "catalogs", self._catalogs(), query)
            case ["GET", "schemas"]:
                return self._list("ListSchemasResponse", "schemas", self._schemas(query), query)
            case ["GET", "tables"]:
                return self._list("ListTablesResponse", "tables", self._tables(query), query)
            case ["GET", "tables", full_name]:
                parts = self._found(full_name)
                self.check(*parts)
                return f"{self.models}TableInfo", self.info(
                    parts, self.tables(parts[:2])[parts[2]], query
                )
        raise Refusal(404, "NOT_FOUND", "no such path")

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return {
            "error_code": refusal.code,
            "message": refusal.message,
            "details": [
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": refusal.code}
            ],
        }

    def info(self, parts: tuple[str, ...], entry: Entry, query: Query) -> dict[str, Any]:
        """The description of one table."""
        fields = {
            "name": parts[2],
            "catalog_name": parts[0],
            "schema_name": parts[1],
            "table_type": entry.type,
            "data_source_format": entry.format,
            "columns": list(self.columns),
            "storage_location": entry.location,
            "owner": entry.owner,
            "comment": entry.comment,
            "properties": entry.properties,
            "table_id": str(uuid5(NAMESPACE_URL, "/".join(parts))),
            "updated_at": 1_790_000_000_000,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _found(self, full_name: str) -> tuple[str, ...]:
        for namespace, names in self.namespaces.items():
            for name in names:
                own = ".".join((*namespace, name))
                if full_name == own or (self.any_case and full_name.lower() == own.lower()):
                    return (*namespace, name)
        raise Refusal(404, "TABLE_NOT_FOUND", f"there is no table {full_name}")

    def _catalogs(self) -> list[dict[str, Any]]:
        self.check()
        return [{"name": name} for name in self.catalogs()]

    def _schemas(self, query: Query) -> list[dict[str, Any]]:
        catalog = query["catalog_name"]
        self.check(catalog)
        if catalog not in self.catalogs():
            raise Refusal(404, "CATALOG_NOT_FOUND", f"Catalog not found: {catalog}")
        return [
            {"name": parts[1], "catalog_name": catalog, "full_name": ".".join(parts)}
            for parts in sorted(self.namespaces)
            if parts[0] == catalog
        ]

    def _tables(self, query: Query) -> list[dict[str, Any]]:
        schema = query["catalog_name"], query["schema_name"]
        return [
            self.info((*schema, name), entry, query)
            for name, entry in sorted(self.tables(schema).items())
        ]

    def _list(self, model: str, field: str, items: list[dict[str, Any]], query: Query) -> Answer:
        size = query.get("max_results")
        if self.most_results and field == "tables" and size and int(size) > self.most_results:
            raise Refusal(400, "INVALID_ARGUMENT", "max_results must not exceed 50")
        page, token = self.page(items, query.get("page_token"))
        body: dict[str, Any] = {field: list(page)}
        return self.models + model, {**body, **({"next_page_token": token} if token else {})}


class DatabricksServer(UnityServer):
    """Databricks: more fields, columns on request, and everything at once without `max_results`."""

    profile = "databricks"
    models = "Databricks"
    any_case = True
    most_results = None

    def route(self, method: str, steps: Sequence[str], query: Query, headers: Any) -> Answer:
        match [method, *steps[3:]]:
            case ["GET", "entity-tag-assignments", kind, full_name, "tags"]:
                parts = tuple(full_name.split("."))
                self.check("tags", *parts)
                assigned = [
                    {
                        "entity_name": full_name,
                        "entity_type": kind,
                        "tag_key": key,
                        **({"tag_value": value} if value else {}),
                    }
                    for key, value in sorted(self.tags.get(parts, {}).items())
                ]
                assert kind == ("catalogs", "schemas", "tables")[len(parts) - 1]
                return self._list(
                    "ListEntityTagAssignmentsResponse",
                    "tag_assignments",
                    assigned,
                    Query(query, max_results="0"),
                )
        return super().route(method, steps, query, headers)

    def info(self, parts: tuple[str, ...], entry: Entry, query: Query) -> dict[str, Any]:
        fields = super().info(parts, entry, query)
        if query.get("omit_columns") == "true":
            del fields["columns"]
        if entry.deleted:
            fields["deleted_at"] = 1_790_000_000_001
        return {**fields, "full_name": ".".join(parts), "metastore_id": "m", "browse_only": False}

    def _list(self, model: str, field: str, items: list[dict[str, Any]], query: Query) -> Answer:
        if "max_results" not in query:
            return self.models + model, {field: items}
        return super()._list(model, field, items, query)
