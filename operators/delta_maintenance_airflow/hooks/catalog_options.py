"""Options of catalogs from the fields of an Airflow connection, as storage options.

This module makes no requests, and no message contains a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delta_maintenance.address import CatalogKind

KINDS: Mapping[str, CatalogKind] = {
    "delta_unity_catalog": CatalogKind.UNITY,
    "delta_glue": CatalogKind.GLUE,
    "delta_hive_metastore": CatalogKind.HIVE,
    "delta_lakekeeper": CatalogKind.LAKEKEEPER,
    "delta_polaris": CatalogKind.POLARIS,
    "delta_gravitino": CatalogKind.GRAVITINO,
}
"""The kinds of catalogs by connection type."""
_NOT_FOR_CATALOGS = frozenset({"storage_conn_id", "spark_conn_id", "other_writers"})
_NAMES = {"catalog": "name", "token_address": "token_uri"}


def catalog_options(connection: Any, extra: Mapping[str, Any]) -> dict[str, str]:
    """Returns the options in the connection of a catalog (`catalogs.settings.settings_of`)."""
    kind = KINDS[connection.conn_type]
    options = {
        _NAMES.get(name, name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in extra.items()
        if name not in _NOT_FOR_CATALOGS and value not in (None, "")
    }
    if connection.host:
        options["uri"] = _address(connection, kind)
    if kind is CatalogKind.GLUE:
        secrets = {"access_key_id": connection.login, "secret_access_key": connection.password}
    elif kind is CatalogKind.HIVE:
        secrets = {"user": connection.login}
    elif connection.login:
        secrets = {"client_id": connection.login, "client_secret": connection.password}
    else:
        secrets = {"token": connection.password}
    options |= {name: value for name, value in secrets.items() if value}
    return {f"catalog_{name}": value for name, value in options.items()}


def _address(connection: Any, kind: CatalogKind) -> str:
    host: str = connection.host
    if "://" in host:
        return host
    scheme = "thrift" if kind is CatalogKind.HIVE else connection.schema or "https"
    port = f":{connection.port}" if connection.port else ""
    return f"{scheme}://{host}{port}"
