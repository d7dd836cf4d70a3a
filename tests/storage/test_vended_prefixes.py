"""Each request has the credentials of the longest prefix that contains its key."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest

from delta_maintenance import DeltaTable
from delta_maintenance.catalogs.vending import source_of
from delta_maintenance.errors import CatalogError
from delta_maintenance.storage import open_store
from tests.support.catalogs.catalog_server import Entry
from tests.support.catalogs.generic_table_servers import LakekeeperServer
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.rewrites.rewritten_tables import Rewritten

pytestmark = pytest.mark.server

_NAME = "lakekeeper://lake.s.t"


class _Store:
    """A store on which a key opens the objects whose longest prefix is its own, and no others."""

    def __init__(self, bucket: str, *folders: str) -> None:
        self.bucket = bucket
        self.folders = folders
        self.used: set[str] = set()
        """The folders to which objects were written, or from which they were deleted."""
        self.refused: list[str] = []

    @property
    def credentials(self) -> list[dict[str, Any]]:
        return [
            {
                "prefix": f"s3://{self.bucket}/{folder}",
                "config": {
                    "s3.access-key-id": folder,
                    "s3.secret-access-key": "secret",
                    "s3.session-token": "session",
                },
            }
            for folder in self.folders
        ]

    def guarded(self, application: Application) -> Application:
        def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            found = re.search(r"Credential=(.*)/\d{8}/", environ.get("HTTP_AUTHORIZATION", ""))
            wanted = {self._folder(key) for key in _keys(environ, f"/{self.bucket}")}
            if found is None or wanted != {found[1]}:
                line = (
                    f"{environ['REQUEST_METHOD']} {environ['REQUEST_URI']} as {found and found[1]}"
                )
                self.refused.append(line)
                start("403 Forbidden", [("Content-Type", "application/xml")])
                return [b"<Error><Code>AccessDenied</Code><Message>m</Message></Error>"]
            if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
                self.used.add(found[1])
            return application(environ, start)

        return answer

    def _folder(self, key: str) -> str:
        return max((f for f in self.folders if f"{key}/".startswith(f"{f}/")), key=len, default="")


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


@pytest.fixture
def lakekeeper() -> Iterator[LakekeeperServer]:
    with LakekeeperServer().running() as server:
        yield server


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
    # A folder whose name begins with that of the table, and one that contains the table.
    store = _Store(s3_bucket, "t", "t/_delta_log", "t/p=x", "t/p=", "tt")
    lakekeeper.credentials = store.credentials
    s3_server.intercept = store.guarded
    table = DeltaTable(_NAME, _options(lakekeeper, s3_server))
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
    s3_server.intercept = None
    assert made.rows() == before


def test_a_folder_without_credentials_is_named(
    lakekeeper: LakekeeperServer, s3_server: S3Server, s3_bucket: str
) -> None:
    address = f"s3://{s3_bucket}/t"
    Rewritten(store=open_store(address, s3_server.storage_options), vectors=False)
    lakekeeper.add("lake", "s", "t", entry=Entry(location=address))
    store = _Store(s3_bucket, "t/_delta_log")
    lakekeeper.credentials = store.credentials
    s3_server.intercept = store.guarded
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
    store = _Store(s3_bucket, "t", "t/a")
    lakekeeper.credentials = store.credentials
    s3_server.intercept = store.guarded
    table = DeltaTable(_NAME, _options(lakekeeper, s3_server)).table.store
    asked = len(lakekeeper.requests)
    for _ in range(3):
        table.put("a/one", b"x")
        table.put("b/two", b"x")
    assert {"a/one", "b/two"} == {f.path for d in "ab" for f in table.list_from(d)}
    assert table.delete_many(["a/one", "b/two"]) == {}
    assert sum("generic-tables" in request for request in lakekeeper.requests[asked:]) <= 2
    assert store.refused == []
