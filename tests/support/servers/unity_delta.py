"""A server of Unity Catalog for a few tables: resolving, vended credentials and ratified commits.

It speaks the Delta API 1.0 and, with `old=True`, only what came before it. The keys that it vends
open the emulator of S3 (`guarded`) until they end.

It is as lax as the server 0.6.0: it believes what clients say of their commits, forgets what they
report as published, and refuses a commit that is sent again after that.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from delta_maintenance import clock
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import log_text

TOKEN = "canary-catalog-token"
MOST_COMMITS = 10
"""The number of commits that are not reported as published."""
_ASSERTION = "assert-table-uuid"
_READS = ("GET", "HEAD")


@dataclass(slots=True, kw_only=True)
class Key:
    """A vended key."""

    secret: str
    session: str
    access: str
    expires_ms: int
    is_rejected: bool = False


@dataclass(slots=True, kw_only=True)
class UnityTable:
    """A table as the server knows it."""

    location: str
    table_id: str = "11111111-2222-3333-4444-555555555555"
    managed: bool = False
    rights: frozenset[str] = frozenset(("READ", "READ_WRITE"))
    latest: int = 0
    commits: list[dict[str, Any]] = field(default_factory=list)
    """With the names of the Delta API."""
    allowed: list[str] | None = None
    uniform: bool = False
    """Whether each commit needs a block for Iceberg."""
    names: dict[int, str] = field(default_factory=dict)
    """The file names of all commits that were ever added."""

    def update(self, body: dict[str, Any], *, later: bool) -> tuple[int, str] | None:
        """Adds a commit and takes a report. Returns the refusal, which changes nothing.

        `later` releases compare a commit that was forgotten with its staged file.
        """
        uuids = [each["uuid"] for each in body["requirements"] if each["type"] == _ASSERTION]
        if not uuids:
            return 400, "InvalidParameterValueException"
        if uuids != [self.table_id]:
            return 409, "UpdateRequirementConflictException"
        updates = {each["action"]: each for each in body["updates"]}
        if len(updates) < len(body["updates"]):
            return 400, "InvalidParameterValueException"
        commits, report = self.commits, updates.get("set-latest-backfilled-version")
        if report is not None:
            version = report["latest-published-version"]
            oldest = min((each["version"] for each in commits), default=self.latest)
            if not oldest <= version <= self.latest:
                return 400, "InvalidParameterValueException"
            commits = [each for each in commits if each["version"] > version]
        added = updates.get("add-commit")
        if added is not None:
            commit = added["commit"]
            version = commit["version"]
            if version > self.latest + 1 or (self.uniform and "uniform" not in added):
                return 400, "InvalidParameterValueException"
            if version <= self.latest:
                if all(each["version"] != version for each in self.commits):
                    return (
                        (500, "CommitStateUnknownException")
                        if later
                        else (409, "CommitVersionConflictException")
                    )
                if self.names[version] != commit["file-name"]:
                    return 409, "CommitVersionConflictException"
                return None
            if len(commits) >= MOST_COMMITS:
                return 429, "ResourceExhaustedException"
            commits = [*commits, commit]
            self.latest, self.names[version] = version, commit["file-name"]
        self.commits = commits
        return None


@dataclass(slots=True, kw_only=True)
class UnityServer:
    """A running server."""

    url: str = ""
    tables: dict[str, UnityTable] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """`METHOD PATH?QUERY`, and the wanted operation, for each request so far."""
    answers: list[tuple[str, Any]] = field(default_factory=list)
    """The answers so far, with the names of their models in the official client."""
    old: bool = False
    lifetime_ms: int = 3_600_000
    later: bool = False
    """Answers like releases after 0.6.0."""
    spoil: Callable[[Callable[[], Any]], Any] | None = None
    """Answers a change, which it makes with the call that it is given. Without a status, the
    connection is closed."""
    status: int | None = None
    """Answers every request with this status, while it is set."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    tamper: Callable[[str, int, Any], tuple[int, Any]] | None = None
    """Changes each answer: given the path of the request, and the status and the body of the
    answer. Bytes are sent as they are."""
    config: Callable[[Key, str], dict[str, str]] | None = None
    """Makes the vended configuration of a key and its ID; by default that of S3."""

    @property
    def options(self) -> dict[str, str]:
        """The storage options that reach the server."""
        return {"catalog_uri": self.url, "catalog_token": TOKEN}

    def add(self, name: str, table: UnityTable) -> UnityTable:
        """Registers a table."""
        self.tables[name] = table
        return table

    def reject_keys(self) -> None:
        """Ends all keys before their time."""
        for key in self.keys.values():
            key.is_rejected = True

    def canaries(self) -> list[str]:
        """Every secret that exists so far."""
        return [TOKEN, *self.keys, *(s for key in self.keys.values() for s in _secrets(key))]

    def vended(self) -> list[str]:
        """What credentials were requested for, in order."""
        return [line.rpartition(" ")[2] for line in self.requests if "credentials" in line]

    def guarded(self, application: Application) -> Application:
        """Lets only valid keys with the right access into the emulator of S3."""

        def guard(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            problem = self._problem(environ)
            if problem is None:
                return application(environ, start_response)
            status = "400 Bad Request" if problem == "ExpiredToken" else "403 Forbidden"
            body = f"<Error><Code>{problem}</Code><Message>m</Message></Error>".encode()
            start_response(status, [("Content-Type", "application/xml")])
            return [body]

        return guard

    def _problem(self, environ: Environ) -> str | None:
        found = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        key = self.keys.get(found[1]) if found else None
        if key is None or environ.get("HTTP_X_AMZ_SECURITY_TOKEN") != key.session:
            return "InvalidAccessKeyId"
        if key.is_rejected or clock.epoch_millis(clock.now()) >= key.expires_ms:
            return "ExpiredToken"
        query = environ.get("QUERY_STRING", "")
        if key.access == "READ" and environ["REQUEST_METHOD"] not in _READS:
            return "AccessDenied"
        return None if "delete" not in query or key.access == "READ_WRITE" else "AccessDenied"

    def answer(self, method: str, target: str, token: str, body: dict[str, Any]) -> Any:
        """Returns the status and the body of an answer."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        wanted = query.get("operation") or body.get("operation") or ""
        self.requests.append(f"{method} {target} {wanted}".strip())
        if self.status is not None:
            return self.status, _error("InternalServerErrorException", "down", self.status)
        if token != f"Bearer {TOKEN}":
            return 401, {"error_code": "UNAUTHENTICATED", "message": "no valid token"}
        path = unquote(parts.path).removeprefix("/api/2.1/unity-catalog")
        if path.startswith("/tables/"):
            return self._table(path.removeprefix("/tables/"))
        if path == "/schemas":
            return 200, {"schemas": [{"name": n} for n in {n.split(".")[1] for n in self.tables}]}
        if path == "/tables":
            visible = (name for name, table in self.tables.items() if table.rights)
            return 200, {"tables": [self._table(name)[1] for name in visible]}
        if path == "/temporary-table-credentials":
            table = next((t for t in self.tables.values() if t.table_id == body["table_id"]), None)
            return self._old_credentials(table, wanted)
        if path == "/delta/preview/commits" and self.old:
            return self._old_commits(method, body)
        if self.old:
            return 404, {"message": "no such endpoint"}
        if path == "/delta/v1/config":
            return 200, {"endpoints": list(_ENDPOINTS), "protocol-version": "1.0"}
        found = re.fullmatch(
            r"/delta/v1/catalogs/([^/]+)/schemas/([^/]+)/tables/([^/]+)(/credentials)?", path
        )
        table = self.tables.get(".".join(found.groups()[:3])) if found else None
        if found is None or table is None:
            return 404, _error("NoSuchTableException", "no such table", 404)
        if found[4]:
            return self._credentials(table, wanted)
        return (200, _loaded(table)) if method == "GET" else self._update(table, body)

    def _update(self, table: UnityTable, body: dict[str, Any]) -> Any:
        if "READ_WRITE" not in table.rights:
            return 403, _error("PermissionDeniedException", "denied", 403)

        def change() -> Any:
            refusal = table.update(body, later=self.later)
            if refusal is not None:
                status, kind = refusal
                return status, _error(kind, "refused", status)
            return 200, _loaded(table)

        return change() if self.spoil is None else self.spoil(change)

    def _table(self, name: str) -> Any:
        table = self.tables.get(name)
        if table is None:
            return 404, {"error_code": "TABLE_DOES_NOT_EXIST", "message": f"no {name}"}
        catalog, schema, short = name.split(".")
        return 200, {
            "catalog_name": catalog,
            "schema_name": schema,
            "name": short,
            "table_id": table.table_id,
            "table_type": "MANAGED" if table.managed else "EXTERNAL",
            "data_source_format": "DELTA",
            "storage_location": table.location,
            "properties": {"delta.feature.catalogManaged": "supported"} if table.managed else {},
        }

    def _new_key(self, access: str) -> tuple[str, Key]:
        number = next(self.numbers)
        key_id = f"canaryKey{number}"
        key = self.keys[key_id] = Key(
            secret=f"canarySecret{number}",
            session=f"canarySession{number}",
            access=access,
            expires_ms=clock.epoch_millis(clock.now()) + self.lifetime_ms,
        )
        return key_id, key

    def _credentials(self, table: UnityTable, access: str) -> Any:
        if access not in table.rights:
            return 403, _error("PermissionDeniedException", "denied", 403)
        key_id, key = self._new_key(access)
        config = (self.config or _s3_config)(key, key_id)
        prefixes = {table.location: config, f"{table.location}/_delta_log_other": {}}
        return 200, {
            "storage-credentials": [
                {
                    "prefix": prefix,
                    "operation": access,
                    "config": each,
                    "expiration-time-ms": key.expires_ms,
                }
                for prefix, each in prefixes.items()
            ]
        }

    def _old_credentials(self, table: UnityTable | None, access: str) -> Any:
        if table is None:
            return 404, {"error_code": "TABLE_DOES_NOT_EXIST", "message": "no such table"}
        if access not in table.rights:
            return 403, {"error_code": "PERMISSION_DENIED", "message": "denied"}
        key_id, key = self._new_key(access)
        config = (self.config or _s3_config)(key, key_id)
        answer: dict[str, Any] = {"expiration_time": key.expires_ms, "url": table.location}
        if "s3.access-key-id" in config:
            answer["aws_temp_credentials"] = {
                "access_key_id": key_id,
                "secret_access_key": key.secret,
                "session_token": key.session,
            }
        if token := config.get("gcs.oauth-token"):
            answer["gcp_oauth_token"] = {"oauth_token": token}
        if sas := config.get("azure.sas-token"):
            answer["azure_user_delegation_sas"] = {"sas_token": sas}
        return 200, answer

    def _old_commits(self, method: str, body: dict[str, Any]) -> Any:
        table = next((t for t in self.tables.values() if t.table_id == body["table_id"]), None)
        if table is None:
            return 404, {"error_code": "TABLE_NOT_FOUND", "message": "no such table"}
        if method == "POST":
            version = body["latest_backfilled_version"]
            report = {
                "action": "set-latest-backfilled-version",
                "latest-published-version": version,
            }
            assertion = {"type": _ASSERTION, "uuid": body["table_id"]}
            status, answer = self._update(table, {"requirements": [assertion], "updates": [report]})
            return status, {} if status == 200 else answer
        commits = [c for c in table.commits if c["version"] >= body["start_version"]]
        page = sorted(commits, key=lambda c: c["version"])[:2]
        named = [{name.replace("-", "_"): value for name, value in c.items()} for c in page]
        return 200, {"commits": named[::-1], "latest_table_version": table.latest}


@contextmanager
def serve_unity() -> Iterator[UnityServer]:
    """Serves on a free port of the loopback interface until the block ends."""
    server = UnityServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size) or b"{}")
            token = self.headers.get("Authorization", "")
            status, answer = server.answer(self.command, self.path, token, body)
            if status is None:
                self.close_connection = True
                return
            if server.tamper is None:
                if answer:
                    server.answers.append((_model(self.path, status), answer))
            else:
                status, answer = server.tamper(self.path, status, answer)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _do

        def log_message(self, format: str, *args: Any) -> None:
            return

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


@contextmanager
def serve_guarded_table(s3: S3Server, bucket: str) -> Iterator[UnityServer]:
    """Serves the table `main.s.t` in the folder `t` of a bucket that accepts vended keys only.

    It has three versions and no checkpoint.
    """
    with serve_unity() as server:
        server.add("main.s.t", UnityTable(location=f"s3://{bucket}/t"))
        for version in range(3):
            actions = [add(f"{version}.parquet")] if version else [protocol(), metadata()]
            key = f"t/_delta_log/{version:020}.json"
            s3.fill(bucket, [key], log_text([*actions, {"commitInfo": {}}]))
            s3.fill(bucket, [f"t/{version}.parquet"], b"x")
        s3.intercept = server.guarded
        try:
            yield server
        finally:
            s3.intercept = None


def _model(path: str, status: int) -> str:
    path = urlsplit(path).path.removeprefix("/api/2.1/unity-catalog")
    if status != 200:
        return "DeltaErrorResponse" if path.startswith("/delta/v1/catalogs") else "UnityError"
    return next(model for pattern, model in _MODELS.items() if re.fullmatch(pattern, path))


def _loaded(table: UnityTable) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "metadata": {
            "etag": "e",
            "table-type": "MANAGED" if table.managed else "EXTERNAL",
            "table-uuid": table.table_id,
            "location": table.location,
            "created-time": 0,
            "updated-time": 0,
            "columns": {"type": "struct", "fields": []},
            "properties": {},
        },
        "commits": sorted(table.commits, key=lambda c: -c["version"]),
        "latest-table-version": table.latest,
    }
    if table.allowed is not None:
        answer["allowed-maintenance-operations"] = table.allowed
    return answer


def _error(kind: str, message: str, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}


def _secrets(key: Key) -> tuple[str, str]:
    return key.secret, key.session


def _s3_config(key: Key, key_id: str) -> dict[str, str]:
    return {
        "s3.access-key-id": key_id,
        "s3.secret-access-key": key.secret,
        "s3.session-token": key.session,
    }


_MODELS = {
    "/schemas": "ListSchemasResponse",
    "/tables": "ListTablesResponse",
    "/tables/.*": "TableInfo",
    "/temporary-table-credentials": "TemporaryCredentials",
    "/delta/preview/commits": "DeltaGetCommitsResponse",
    "/delta/v1/config": "DeltaCatalogConfig",
    "/delta/v1/.*/credentials": "DeltaCredentialsResponse",
    "/delta/v1/catalogs/.*": "DeltaLoadTableResponse",
}
_TABLE = "/v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"
_ENDPOINTS = (
    "POST /v1/catalogs/{catalog}/schemas/{schema}/tables",
    f"GET {_TABLE}",
    f"POST {_TABLE}",
    f"GET {_TABLE}/credentials",
    "GET /v1/something/else",
)
