"""The Delta API of Unity Catalog, and the commits of catalog-managed tables."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from delta_maintenance.address import CatalogName
from delta_maintenance.catalogs.catalog import CatalogTable, ManagedState, RatifiedCommit
from delta_maintenance.catalogs.http.authorization import RequestRefused
from delta_maintenance.catalogs.http.client import CatalogClient, entries, segment
from delta_maintenance.errors import CatalogError, CatalogUnavailableError, shorten

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

    def path(self, name: CatalogName, ending: str, *, method: str = "GET") -> str | None:
        """Returns the path of a request for a table; None if the server does not offer it.

        `RequestRefused` if the server cannot say.
        """
        catalog, schema, table = (segment(name_part) for name_part in name.parts)
        for endpoint in self._endpoints(name.parts[0]):
            offered, _, template = endpoint.partition(" ")
            if offered == method and template.endswith("/schemas/{schema}" + ending):
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
        if not isinstance(listed, list):
            raise RequestRefused(status=None, code="NotJSON", detail="the answer has no endpoints")
        return tuple(endpoint for endpoint in listed if isinstance(endpoint, str))


_MAINTENANCE = frozenset(("DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP"))
_STAGED = re.compile(r"(\d{20})\.[0-9A-Za-z-]+\.json")
_MOST_PAGES = 1000
_OLD_COMMITS = "/delta/preview/commits"
_PAUSES = (0.2, 1.0, 5.0)
"""The pauses before a report is sent again, in seconds."""


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


def report_published(
    client: CatalogClient, delta: DeltaApi, table: CatalogTable, version: int
) -> None:
    """Reports that all commits up to a version are published.

    The server may have forgotten them, and then answers 400, 409 or 500, also to a report that is
    sent again. Therefore, the state decides after each failure. `CatalogError` if the name belongs
    to another table now, or for a refusal; `CatalogUnavailableError` if the server cannot answer.
    """
    name = str(table.name)
    with client.naming(name):
        path = delta.path(table.name, LOAD, method="POST")
    body: dict[str, Any] = {
        "requirements": [{"type": "assert-table-uuid", "uuid": table.table_id}],
        "updates": [
            {"action": "set-latest-backfilled-version", "latest-published-version": version}
        ],
    }
    if path is None:
        path = _OLD_COMMITS
        body = {
            "table_id": table.table_id,
            "table_uri": table.location,
            "latest_backfilled_version": version,
        }
    for pause in (*_PAUSES, None):
        try:
            client.send("POST", path, body=body, retried=False)
            return
        except RequestRefused as refused:
            failure = refused
        if failure.access or failure.missing:
            break
        state = managed_state(client, delta, table)
        is_listed = any(commit.version <= version for commit in state.commits)
        # A catalog that was restored from a backup can be behind the published commits.
        if version <= state.latest_version and not is_listed:
            return
        if pause is None or not (failure.is_unsure or failure.status == 409):
            break
        time.sleep(pause)
    if failure.access or failure.missing or failure.is_unsure:
        raise client.error(failure, name, needs="USE CATALOG, USE SCHEMA, SELECT and MODIFY")
    # Raised outside the handler, so that the error has no `__context__`.
    kind = CatalogUnavailableError if failure.status == 409 else CatalogError
    raise kind(
        f"{client.title} refuses the report that {name} is published up to version {version} "
        f"({failure})",
        remedy="run publish again, which checks the published commits, and show the operator of "
        "the catalog this answer if it comes again",
    )


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
    allowed = allowed if isinstance(allowed, list) else []
    return _state(
        table,
        table_id,
        answer.get("latest-table-version"),
        _commits(table, answer, "-"),
        allowed=_MAINTENANCE & {operation for operation in allowed if isinstance(operation, str)},
    )


def _list_state(client: CatalogClient, table: CatalogTable) -> ManagedState:
    """Asks the interface before the Delta API, which may leave commits out of an answer."""
    latest: int | None = None
    commits: dict[int, RatifiedCommit] = {}
    first_version = 0
    for _ in range(_MOST_PAGES):
        answer = client.send(
            "GET",
            _OLD_COMMITS,
            body={
                "table_id": table.table_id,
                "table_uri": table.location,
                "start_version": first_version,
            },
        )
        stated = answer.get("latest_table_version")
        latest = stated if latest is None else latest
        page_commits = _commits(table, answer, "_")
        commits |= {commit.version: commit for commit in page_commits}
        # A commit that was ratified meanwhile belongs to the next state.
        newest = max(commits, default=-1)
        if newest < first_version or not isinstance(latest, int) or newest >= latest:
            break
        first_version = newest + 1
    last_version = latest if isinstance(latest, int) else -1
    remaining_commits = [commit for commit in commits.values() if commit.version <= last_version]
    return _state(table, table.table_id or "", latest, remaining_commits)


def _state(
    table: CatalogTable,
    table_id: str,
    latest: object,
    commits: Iterable[RatifiedCommit],
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


def _versions(commits: Iterable[RatifiedCommit]) -> Iterator[int]:
    return (commit.version for commit in commits)


def _commits(table: CatalogTable, answer: Mapping[str, Any], joint: str) -> list[RatifiedCommit]:
    """Reads the commits of an answer, which must not leave any out; a missing list is empty."""
    commits = entries(answer, "commits")
    if len(commits) != len(answer.get("commits") or ()):
        raise _contradiction(table, "commits in an unknown form")
    return [_commit(table, entry, joint) for entry in commits]


def _commit(table: CatalogTable, entry: Mapping[str, Any], joint: str) -> RatifiedCommit:
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
    if not all(isinstance(number, int) and 0 <= number < 2**63 for number in numbers):
        raise _contradiction(table, f"a commit in an unknown form (version {version})")
    version, timestamp, size, modified = (int(number or 0) for number in numbers)
    return RatifiedCommit(
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
