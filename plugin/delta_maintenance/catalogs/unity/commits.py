"""The Delta API of Unity Catalog, and the commits of catalog-managed tables."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from delta_maintenance.address import CatalogName
from delta_maintenance.catalogs.catalog import CatalogTable, ManagedCommit, ManagedState
from delta_maintenance.catalogs.http.authorization import RequestRefused
from delta_maintenance.catalogs.http.client import CatalogClient, entries, segment
from delta_maintenance.errors import CatalogError, shorten

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
        catalog, schema, table = (segment(name_part) for name_part in name.parts)
        for endpoint in self._endpoints(name.parts[0]):
            method, _, template = endpoint.partition(" ")
            if method == "GET" and template.endswith("/schemas/{schema}" + ending):
                filled = template.replace("{catalog}", catalog).replace("{schema}", schema)
                return "/delta" + filled.replace("{table}", table)
        return None

    def _endpoints(self, catalog: str) -> tuple[str, ...]:
        with self._lock:
            if catalog not in self._offered:
                self._offered[catalog] = self._negotiate(catalog)
            return self._offered[catalog]

    def _negotiate(self, catalog: str) -> tuple[str, ...]:
        query = {"catalog": catalog, "protocol-versions": "1.0"}
        try:
            answer: dict[str, Any] = self._client.get("/delta/v1/config", query)
        except RequestRefused as failure:
            # Older servers have only the interfaces before it.
            if failure.status in (404, 501):
                return ()
            raise
        listed = answer.get("endpoints")
        return tuple(endpoint for endpoint in listed if isinstance(endpoint, str)) if listed else ()


_MAINTENANCE = frozenset(("DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP"))
_STAGED = re.compile(r"(\d{20})\.[0-9A-Za-z-]+\.json")
_MOST_PAGES = 1000


def managed_state(client: CatalogClient, delta: DeltaApi, table: CatalogTable) -> ManagedState:
    """Returns the ratified commits: of the Delta API 1.0, or of the interface before it.

    `CatalogError` if the answer contradicts itself, and if the name belongs to another table now.
    """
    name = str(table.name)
    with client.naming(name):
        path = delta.path(table.name, LOAD)
        if path is not None:
            return _load_state(table, client.get(path))
        return _list_state(client, table)


def _load_state(table: CatalogTable, answer: Mapping[str, Any]) -> ManagedState:
    metadata = answer.get("metadata")
    table_id = metadata.get("table-uuid") if isinstance(metadata, Mapping) else None
    if not isinstance(table_id, str):
        raise _contradiction(table, "no ID of the table")
    if table.table_id is not None and table_id.lower() != table.table_id.lower():
        raise CatalogError(
            f"{table.name} was dropped and created again", remedy="run again for the new table"
        )
    allowed = answer.get("allowed-maintenance-operations")
    return _state(
        table,
        table_id,
        answer.get("latest-table-version"),
        (_commit(table, entry, "-") for entry in entries(answer, "commits")),
        allowed=_MAINTENANCE
        & {operation for operation in allowed or () if isinstance(operation, str)},
    )


def _list_state(client: CatalogClient, table: CatalogTable) -> ManagedState:
    """Asks the interface before the Delta API, which may leave commits out of an answer."""
    latest: int | None = None
    commits: dict[int, ManagedCommit] = {}
    first_version = 0
    for _ in range(_MOST_PAGES):
        answer = client.send(
            "GET",
            "/delta/preview/commits",
            body={
                "table_id": table.table_id,
                "table_uri": table.location,
                "start_version": first_version,
            },
        )
        stated = answer.get("latest_table_version")
        latest = stated if latest is None else latest
        page_commits = [_commit(table, entry, "_") for entry in entries(answer, "commits")]
        commits |= {commit.version: commit for commit in page_commits}
        # A commit that was ratified meanwhile belongs to the next state.
        if not page_commits or not isinstance(latest, int) or max(commits) >= latest:
            break
        first_version = max(commits) + 1
    remaining_commits = (
        commits[version] for version in sorted(commits) if version <= (latest or 0)
    )
    return _state(table, table.table_id or "", latest, remaining_commits)


def _state(
    table: CatalogTable,
    table_id: str,
    latest: object,
    commits: Iterable[ManagedCommit],
    *,
    allowed: frozenset[str] = frozenset(),
) -> ManagedState:
    ordered = tuple(sorted(commits, key=lambda commit: commit.version))
    if not isinstance(latest, int) or isinstance(latest, bool) or not 0 <= latest < 2**63 - 1:
        raise _contradiction(table, "no latest version")
    if ordered and [*_versions(ordered)] != [*range(latest - len(ordered) + 1, latest + 1)]:
        raise _contradiction(table, f"commits that do not lead to its latest version {latest}")
    return ManagedState(
        table_id=table_id, latest_version=latest, commits=ordered, allowed_maintenance=allowed
    )


def _versions(commits: Iterable[ManagedCommit]) -> Iterator[int]:
    return (commit.version for commit in commits)


def _commit(table: CatalogTable, entry: Mapping[str, Any], joint: str) -> ManagedCommit:
    """Reads one commit; `joint` joins the words in the names of fields."""
    name = entry.get(f"file{joint}name")
    numbers = [
        entry.get(field.replace("_", joint))
        for field in ("version", "timestamp", "file_size", "file_modification_timestamp")
    ]
    version = numbers[0]
    staged = _STAGED.fullmatch(name) if isinstance(name, str) else None
    # The name becomes a part of a path.
    if staged is None or int(staged[1]) != version:
        raise _contradiction(table, f"the file {shorten(repr(name), 200)} as version {version}")
    if not all(isinstance(number, int) for number in numbers):
        raise _contradiction(table, f"a commit in an unknown form (version {version})")
    version, timestamp, size, modified = (int(number or 0) for number in numbers)
    return ManagedCommit(
        version=version,
        file_name=staged[0],
        size=size,
        modified_ms=modified,
        timestamp_ms=timestamp,
    )


def _contradiction(table: CatalogTable, problem: str) -> CatalogError:
    return CatalogError(
        f"the catalog states {problem} for {table.name}",
        remedy="report it to the operator of the catalog",
    )
