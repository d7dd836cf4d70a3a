"""The Delta API 1.0 of Unity Catalog: which of its requests a server offers."""

from __future__ import annotations

import threading
from typing import Any

from delta_maintenance.catalogs.http.authorization import RequestRefused
from delta_maintenance.catalogs.http.client import CatalogClient, segment
from delta_maintenance.catalogs.names import CatalogName

LOAD = "/tables/{table}"
"""The end of the request that loads a table."""
CREDENTIALS = "/tables/{table}/credentials"
"""The end of the request for credentials."""


class DeltaApi:
    """Requests of the Delta API. Thread-safe; a server is asked once for each catalog."""

    def __init__(self, client: CatalogClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._offered: dict[str, tuple[str, ...]] = {}

    def path(self, name: CatalogName, ending: str) -> str | None:
        """Returns the path of a GET request for a table; None if the server does not offer it.

        `RequestRefused` if the server cannot say.
        """
        catalog, schema, table = (segment(part) for part in name.parts)
        for endpoint in self._endpoints(name.parts[0]):
            method, _, template = endpoint.partition(" ")
            if method == "GET" and template.endswith("/schemas/{schema}" + ending):
                filled = template.replace("{catalog}", catalog).replace("{schema}", schema)
                return "/delta" + filled.replace("{table}", table)
        return None

    def _endpoints(self, catalog: str) -> tuple[str, ...]:
        with self._lock:
            if catalog not in self._offered:
                self._offered[catalog] = self._negotiated(catalog)
            return self._offered[catalog]

    def _negotiated(self, catalog: str) -> tuple[str, ...]:
        query = {"catalog": catalog, "protocol-versions": "1.0"}
        try:
            answer: dict[str, Any] = self._client.get("/delta/v1/config", query)
        except RequestRefused as failure:
            # Older servers have only the interfaces before it.
            if failure.status in (404, 501):
                return ()
            raise
        listed = answer.get("endpoints")
        return tuple(each for each in listed if isinstance(each, str)) if listed else ()
