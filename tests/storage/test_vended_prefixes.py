"""Each request has the credentials of the longest prefix that contains its key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from delta_maintenance import DeltaTable
from delta_maintenance.catalogs import source_of
from delta_maintenance.errors import CatalogError
from delta_maintenance.rest import Answer, HttpSession
from delta_maintenance.storage import open_store
from delta_maintenance.storage.gcs.client import GCSClient
from tests.support.catalogs.catalog_server import Entry
from tests.support.catalogs.generic_table_servers import LakekeeperServer
from tests.support.emulators.azure_server import ACCOUNT, ACCOUNT_KEY, AzureServer
from tests.support.emulators.gcs_server import GCSServer
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.rewrites.rewritten_tables import Rewritten
from tests.support.servers.loopback import Request

pytestmark = pytest.mark.server

_NAME = "lakekeeper://lake.s.t"
_FOLDERS = ("t", "t/_delta_log", "t/p=x", "t/p=", "tt")
"""Two of them have a name with which that of another folder begins, and none contains the table."""


class _Store:
    """A store on which credentials open the objects whose longest prefix is their own, and no
    others. `config` makes those of a folder.
    """

    def __init__(
        self, root: str, *folders: str, config: Callable[[str], Mapping[str, str]]
    ) -> None:
        self.credentials = [
            {"prefix": f"{root}/{folder}", "config": dict(config(folder))} for folder in folders
        ]
        self.folders = folders
        self.used: set[str] = set()
        """The folders to which objects were written, or from which they were deleted."""
        self.refused: list[str] = []

    def admits(self, method: str, keys: Sequence[str], folder: str | None) -> bool:
        """Whether a request for keys has their credentials; it has those of a folder."""
        if {self._folder(key) for key in keys} != {folder}:
            self.refused.append(f"{method} {keys} as {folder}")
            return False
        if method not in ("GET", "HEAD"):
            self.used.add(str(folder))
        return True

    def _folder(self, key: str) -> str:
        return max((f for f in self.folders if f"{key}/".startswith(f"{f}/")), key=len, default="")


@pytest.fixture
def lakekeeper() -> Iterator[LakekeeperServer]:
    with LakekeeperServer().running() as server:
        yield server


def _maintains_with_the_right_credentials(table: DeltaTable, store: _Store) -> None:
    assert table.checkpoint().status == "written"
    assert table.optimize(other_writers="none", workers=1).status == "rewritten"
    found = table.vacuum(
        retention=timedelta(0),
        allow_short_retention=True,
        no_other_writers=True,
        allow_large_delete=True,
    )
    assert (found.deleted, found.failed) == (12, 0)
    assert store.refused == []
    assert store.used == {"t", "t/_delta_log", "t/p=x"}


# S3


def _of_s3(bucket: str, *folders: str) -> _Store:
    def config(folder: str) -> dict[str, str]:
        return {
            "s3.access-key-id": folder,
            "s3.secret-access-key": "secret",
            "s3.session-token": "session",
        }

    return _Store(f"s3://{bucket}", *folders, config=config)


def _guarded(store: _Store, bucket: str) -> Callable[[Application], Application]:
    def guarded(application: Application) -> Application:
        def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            found = re.search(r"Credential=(.*)/\d{8}/", environ.get("HTTP_AUTHORIZATION", ""))
            keys = _keys(environ, f"/{bucket}")
            if store.admits(environ["REQUEST_METHOD"], keys, found and found[1]):
                return application(environ, start)
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>m</Message></Error>"]

        return answer

    return guarded


def _keys(environ: Environ, root: str) -> list[str]:
    """The keys that a request concerns; of a listing, the prefix."""
    if environ["PATH_INFO"].rstrip("/") != root:
        return [environ["PATH_INFO"].removeprefix(f"{root}/")]
    query = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
    if "delete" not in query:
        return [query["prefix"][0].rstrip("/")]
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    environ["wsgi.input"] = io.BytesIO(body)
    return re.findall("<Key>(.*?)</Key>", body.decode())


def _options(lakekeeper: LakekeeperServer, s3_server: S3Server) -> dict[str, str]:
    names = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP")
    own = {name: s3_server.storage_options[name] for name in names}
    return {**own, "catalog_uri": lakekeeper.url}


def test_log_data_and_partitions_have_different_credentials(
    lakekeeper: LakekeeperServer, s3_server: S3Server, s3_bucket: str
) -> None:
    address = f"s3://{s3_bucket}/t"
    made = Rewritten(store=open_store(address, s3_server.storage_options), vectors=False)
    before = made.rows()
    lakekeeper.add("lake", "s", "t", entry=Entry(location=address))
    store = _of_s3(s3_bucket, *_FOLDERS)
    lakekeeper.credentials = store.credentials
    s3_server.intercept = _guarded(store, s3_bucket)
    table = DeltaTable(_NAME, _options(lakekeeper, s3_server))
    _maintains_with_the_right_credentials(table, store)
    s3_server.intercept = None
    assert made.rows() == before


def test_a_folder_without_credentials_is_named(
    lakekeeper: LakekeeperServer, s3_server: S3Server, s3_bucket: str
) -> None:
    address = f"s3://{s3_bucket}/t"
    Rewritten(store=open_store(address, s3_server.storage_options), vectors=False)
    lakekeeper.add("lake", "s", "t", entry=Entry(location=address))
    store = _of_s3(s3_bucket, "t/_delta_log")
    lakekeeper.credentials = store.credentials
    s3_server.intercept = _guarded(store, s3_bucket)
    table = DeltaTable(_NAME, _options(lakekeeper, s3_server))
    assert table.health().version > 0
    with pytest.raises(CatalogError, match=rf"no credentials for {address}(/| |;|$)"):
        table.vacuum(retention=timedelta(days=30))
    assert store.refused == []


def test_a_catalog_that_is_asked_again_answers_for_all_prefixes(
    lakekeeper: LakekeeperServer,
    s3_server: S3Server,
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One request renews the credentials of all of them."""
    source_of.cache_clear()
    lakekeeper.add("lake", "s", "t", entry=Entry(location=f"s3://{s3_bucket}/t"))
    store = _of_s3(s3_bucket, "t", "t/a")
    lakekeeper.credentials = store.credentials
    s3_server.intercept = _guarded(store, s3_bucket)
    table = DeltaTable(_NAME, _options(lakekeeper, s3_server)).table.store
    asked = len(lakekeeper.requests)
    for _ in range(3):
        table.put("a/one", b"x")
        table.put("b/two", b"x")
    assert {"a/one", "b/two"} == {f.path for d in "ab" for f in table.list_from(d)}
    assert table.delete_many(["a/one", "b/two"]) == {}
    assert sum("generic-tables" in request for request in lakekeeper.requests[asked:]) <= 2
    assert store.refused == []


# Google


def _keys_on_google(request: Request) -> list[str]:
    parts = urlsplit(request.target)
    query = parse_qs(parts.query, keep_blank_values=True)
    if parts.path.startswith("/batch/"):
        lines = re.findall(r"DELETE \S+/o/(\S+) HTTP", request.body.decode())
        return [unquote(name) for name in lines]
    if named := re.search("/o/([^/]+)$", parts.path):
        return [unquote(named[1])]
    if not parts.path.startswith("/upload"):
        return [query["prefix"][0].rstrip("/")]
    if "name" in query:
        return query["name"]
    found = re.search(rb'\{"name".*\}', request.body)
    assert found is not None
    return [json.loads(found[0])["name"]]


def test_google_is_sent_a_token_for_each_folder(
    lakekeeper: LakekeeperServer,
    gcs_server: GCSServer,
    gcs_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"gs://{gcs_bucket}/t"
    made = Rewritten(store=open_store(address, gcs_server.storage_options), vectors=False)
    before = made.rows()
    lakekeeper.add("lake", "s", "t", entry=Entry(location=address))
    store = _Store(f"gs://{gcs_bucket}", *_FOLDERS, config=lambda f: {"gcs.oauth2.token": f})
    lakekeeper.credentials = store.credentials
    layouts: list[str] = []

    def guard(request: Request) -> bool:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if "/storageLayout" in request.target:
            # Of the bucket, before the first file is created: for that file.
            layouts.append(token)
            return True
        return store.admits(request.method, _keys_on_google(request), token)

    gcs_server.guard = guard
    # The fake answers like the real server, which is trusted to create files atomically.
    monkeypatch.setattr(GCSClient, "is_google", True)
    table = DeltaTable(_NAME, {**gcs_server.storage_options, "catalog_uri": lakekeeper.url})
    _maintains_with_the_right_credentials(table, store)
    assert layouts and set(layouts) <= {"t/_delta_log", "t/p=x", "t"}
    gcs_server.guard = None
    assert made.rows() == before


# Azure


def _signature(folder: str) -> str:
    """A shared access signature that the emulator accepts; each folder has another one."""
    ends = f"2199-01-01T00:00:{_FOLDERS.index(folder):02}Z"
    fields = (ACCOUNT, "rwdlac", "b", "co", "", ends, "", "", "2021-12-02", "", "")
    key, text = base64.b64decode(ACCOUNT_KEY), "\n".join(fields).encode()
    mac = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    return f"sv=2021-12-02&ss=b&srt=co&sp=rwdlac&se={quote(ends)}&sig={quote(mac, safe='')}"


def test_azure_is_sent_a_signature_for_each_folder(
    lakekeeper: LakekeeperServer,
    azure_server: AzureServer,
    azure_container: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"az://{azure_container}/t"
    made = Rewritten(store=open_store(address, azure_server.storage_options), vectors=False)
    before = made.rows()
    lakekeeper.add("lake", "s", "t", entry=Entry(location=address))

    def config(folder: str) -> dict[str, str]:
        return {"azure.sas-token": _signature(folder)}

    store = _Store(f"az://{azure_container}", *_FOLDERS, config=config)
    lakekeeper.credentials = store.credentials
    folders = {_signature(folder): folder for folder in _FOLDERS}
    root = f"{azure_server.url}/{ACCOUNT}/{azure_container}"
    send = HttpSession.send

    def checked(self: HttpSession, method: str, url: str, *more: Any) -> Answer:
        if url.startswith(root):
            plain, _, query = url.partition("?")
            signed = next((sas for sas in folders if query.endswith(sas)), None)
            key = unquote(plain.removeprefix(root).strip("/"))
            prefix = parse_qs(query).get("prefix", [""])[0].rstrip("/")
            if not store.admits(method, [key or prefix], signed and folders[signed]):
                return Answer(status=403, headers={}, body=b"")
        return send(self, method, url, *more)

    monkeypatch.setattr(HttpSession, "send", checked)
    own = {name: v for name, v in azure_server.storage_options.items() if name != "account_key"}
    table = DeltaTable(_NAME, {**own, "catalog_uri": lakekeeper.url})
    _maintains_with_the_right_credentials(table, store)
    monkeypatch.setattr(HttpSession, "send", send)
    assert made.rows() == before
