"""Catalogs over HTTP that answer without end, or with locations that no table can have."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from delta_maintenance.address import CatalogName
from delta_maintenance.catalogs import Catalog, CatalogListing, open_catalog
from delta_maintenance.catalogs.http import client
from delta_maintenance.errors import CatalogError
from tests.support.catalogs.catalog_server import CatalogServer, Entry
from tests.support.catalogs.unity_server import UnityServer
from tests.support.servers.loopback import Reply, Request

pytestmark = pytest.mark.server


def _listed(catalog: Catalog) -> CatalogListing:
    return catalog.list(leads_to=lambda _: True, includes=lambda _: True, known_tables={})


def _error(catalog: Catalog) -> str:
    """The one line of a listing that fails."""
    try:
        failures = _listed(catalog).failures
    except CatalogError as error:
        text = str(error)
    else:
        text = str(failures[0].error)
    assert "\n" not in text and len(text) < 500
    return text


def test_pages_without_end_are_not_followed_for_ever(
    server: CatalogServer, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    if server.kind == "gravitino":
        server.add("prod", "sales", "orders")
        assert len(_listed(catalog).tables) == 1, "its lists have no pages"
        return
    monkeypatch.setattr(client, "MOST_PAGES", 5)
    numbers = itertools.count()
    server.add("prod", "sales", "orders")

    def more(_: int, request: Request) -> Reply:
        reply = server._answer(request)
        token = f"{next(numbers)}"
        body = json.loads(reply.body) | {"next_page_token": token, "next-page-token": token}
        return replace(reply, body=json.dumps(body).encode())

    server.intercept = more
    assert "more than 5 pages" in _error(catalog)
    assert len(server.requests) < 40


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
def test_an_answer_of_a_gigabyte_is_not_received(
    server: CatalogServer, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    session = catalog.client._session  # type: ignore[attr-defined]
    monkeypatch.setattr(session, "_most_bytes", 10_000)
    body = b'{"x": "' + b"x" * 20_000 + b'"}'
    headers = {"Content-Type": "application/json"}
    if not announced:
        headers["Transfer-Encoding"] = "chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    server.intercept = lambda *_: Reply(status=200, headers=headers, body=body)
    assert "longer than 10,000 bytes" in _error(catalog)
    assert len(server.requests) == 1, "it would come again"


def test_values_that_are_nested_without_end_are_no_answer(
    server: CatalogServer, catalog: Catalog
) -> None:
    body = b'{"x":' + b"[" * 500_000
    server.intercept = lambda *_: Reply(status=200, body=body)
    assert "does not answer like" in _error(catalog)


@pytest.mark.parametrize(
    "location", ["warehouse/orders", "../../etc", "./s3:x", "zip://a::s3://b/a.zip", "file:t"]
)
def test_a_location_that_depends_on_this_process_is_refused(
    server: CatalogServer, catalog: Catalog, location: str
) -> None:
    server.add("prod", "sales", "orders")
    server.add("prod", "sales", "bad", entry=Entry(location=location))
    listing = _listed(catalog)
    assert [table.name.table for table in listing.tables] == ["orders"]
    assert ["unusable location" in str(each.error) for each in listing.failures] == [True]
    with pytest.raises(CatalogError, match="unusable location"):
        catalog.resolve(CatalogName(server.kind, ("prod", "sales", "bad")))


def test_a_name_that_is_no_text_hides_no_other(server: CatalogServer, catalog: Catalog) -> None:
    server.add("prod", "sales", "orders")
    server.add("prod", "sales", "SURROGATE")

    def answer(_: int, request: Request) -> Reply:
        reply = server._answer(request)
        return replace(reply, body=reply.body.replace(b"SURROGATE", rb"\ud800"))

    server.intercept = answer
    listing = _listed(catalog)
    names = {table.name.table for table in listing.tables}
    names |= {each.where.rpartition(".")[2] for each in listing.failures}
    assert names == {"orders", "\ud800"}
    assert "orders" in {table.name.table for table in listing.tables}


def test_the_bound_of_answers_is_that_of_the_client() -> None:
    with UnityServer().running() as server, open_catalog(server.settings()) as catalog:
        assert catalog.client._session._most_bytes == client.MOST_BYTES  # type: ignore[attr-defined]
