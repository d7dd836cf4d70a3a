"""Checks JSON answers with the models of the catalogs' own clients.

Runs in the environment of `official_models`. Reads one `[MODEL, BODY]` a line, and prints one line
for each that the model does not read, or of which it loses a part.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

_UNITY = "unitycatalog.client.models"
_DELTA = "unitycatalog.delta.models"
_DATABRICKS = "databricks.sdk.service.catalog"
_POLARIS = "apache_polaris.sdk.catalog.models"
_GRAVITINO = "gravitino.dto.responses"
MODELS = {
    "ListCatalogsResponse": (_UNITY, "ListCatalogsResponse"),
    "ListSchemasResponse": (_UNITY, "ListSchemasResponse"),
    "ListTablesResponse": (_UNITY, "ListTablesResponse"),
    "TableInfo": (_UNITY, "TableInfo"),
    "TemporaryCredentials": (_UNITY, "TemporaryCredentials"),
    "DeltaGetCommitsResponse": (_UNITY, "DeltaGetCommitsResponse"),
    "DeltaCatalogConfig": (f"{_DELTA}.delta_catalog_config", "DeltaCatalogConfig"),
    "DeltaLoadTableResponse": (f"{_DELTA}.delta_load_table_response", "DeltaLoadTableResponse"),
    "DeltaCredentialsResponse": (
        f"{_DELTA}.delta_credentials_response",
        "DeltaCredentialsResponse",
    ),
    "DeltaErrorResponse": (f"{_DELTA}.delta_error_response", "DeltaErrorResponse"),
    "DatabricksListCatalogsResponse": (_DATABRICKS, "ListCatalogsResponse"),
    "DatabricksListSchemasResponse": (_DATABRICKS, "ListSchemasResponse"),
    "DatabricksListTablesResponse": (_DATABRICKS, "ListTablesResponse"),
    "DatabricksTableInfo": (_DATABRICKS, "TableInfo"),
    "DatabricksListEntityTagAssignmentsResponse": (_DATABRICKS, "ListEntityTagAssignmentsResponse"),
    "CatalogConfig": (_POLARIS, "CatalogConfig"),
    "ListNamespacesResponse": (_POLARIS, "ListNamespacesResponse"),
    "IcebergErrorResponse": (_POLARIS, "IcebergErrorResponse"),
    "OAuthTokenResponse": (_POLARIS, "OAuthTokenResponse"),
    "Catalogs": ("apache_polaris.sdk.management.models", "Catalogs"),
    "PolarisListGenericTablesResponse": (_POLARIS, "ListGenericTablesResponse"),
    "PolarisLoadGenericTableResponse": (_POLARIS, "LoadGenericTableResponse"),
    "LakekeeperListGenericTablesResponse": ("pylakekeeper.models", "ListGenericTablesResponse"),
    "LakekeeperLoadGenericTableResponse": ("pylakekeeper.models", "LoadGenericTableResponse"),
    "GravitinoCatalogListResponse": (f"{_GRAVITINO}.catalog_list_response", "CatalogListResponse"),
    "GravitinoCatalogResponse": (f"{_GRAVITINO}.catalog_response", "CatalogResponse"),
    "GravitinoEntityListResponse": (f"{_GRAVITINO}.entity_list_response", "EntityListResponse"),
    "GravitinoTableResponse": (f"{_GRAVITINO}.table_response", "TableResponse"),
    "GravitinoOwnerResponse": (f"{_GRAVITINO}.owner_response", "OwnerResponse"),
    "GravitinoTagResponse": (f"{_GRAVITINO}.tag_response", "TagResponse"),
    "GravitinoTagListResponse": (f"{_GRAVITINO}.tag_response", "TagListResponse"),
    "GravitinoErrorResponse": (f"{_GRAVITINO}.error_response", "ErrorResponse"),
}


def kept(model: Any, body: dict[str, Any]) -> object:
    """Returns what a model keeps of an answer."""
    # `from_dict` of the models of the Delta API loses the fields of a schema.
    whole = not hasattr(model, "from_dict") or model.__module__.startswith(_DELTA)
    if hasattr(model, "model_validate") and whole:
        return model.model_validate(body).model_dump(by_alias=True, exclude_unset=True)
    if hasattr(model, "from_json") and not hasattr(model, "model_validate"):
        read = model.from_json(json.dumps(body), infer_missing=True)
        read.validate()
        return body
    read = model.from_dict(body)
    return read.as_dict() if hasattr(read, "as_dict") else read.to_dict()


def _check(name: str, body: dict[str, Any]) -> str | None:
    if name not in MODELS:
        return "no model"
    module, model = MODELS[name]
    try:
        found = kept(getattr(import_module(module), model), body)
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return _lost(body, found)


def _lost(sent: object, found: object) -> str | None:
    """Names the first part that the model has not kept. It may have added default values."""
    if isinstance(sent, dict) and isinstance(found, dict):
        for name, value in sent.items():
            # The models of Databricks leave out empty values.
            if value not in (None, [], {}) and (lost := _lost(value, found.get(name))):
                return f"{name}.{lost}"
        return None
    if isinstance(sent, list) and isinstance(found, list) and len(sent) == len(found):
        return next(filter(None, map(_lost, sent, found)), None)
    return None if sent == found else f"is {found!r}"


if __name__ == "__main__":
    for line in sys.stdin:
        name, body = json.loads(line)
        if problem := _check(name, body):
            print(f"{name}: {problem}: {json.dumps(body)}"[:1000])
