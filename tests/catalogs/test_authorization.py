"""Tokens of catalogs over HTTP: obtained, renewed, rejected, and never shown."""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any

import pytest

from delta_maintenance.catalogs import Catalog, open_catalog
from delta_maintenance.catalogs.http.authorization import Authorization
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError, CatalogUnavailableError, InvalidRequestError
from delta_maintenance.rest import HttpSession
from tests.catalogs.test_listing import listed
from tests.support.catalogs.catalog_server import CatalogServer, Refusal
from tests.support.catalogs.unity_server import UnityServer
from tests.support.servers.loopback import Reply, Request

pytestmark = pytest.mark.server

CANARY = "canary-5f2c9e"


def test_a_given_token(server: CatalogServer) -> None:
    server.token = CANARY
    name = server.add("prod", "sales", "orders")
    with open_catalog(server.settings()) as catalog:
        assert [table.name for table in listed(catalog).tables] == [name]
        assert catalog.resolve(name).name == name


def test_a_wrong_token(server: CatalogServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.token = "right"
    name = server.add("prod", "sales", "orders")
    with open_catalog(server.settings(token=CANARY)) as catalog:
        for call in (lambda: listed(catalog), catalog.check, lambda: catalog.resolve(name)):
            with pytest.raises(CatalogError, match="rejects the credentials") as raised:
                call()
            line = str(raised.value)
            assert "\n" not in line and CANARY not in line
            assert (raised.value.exit_status, raised.value.retryable) == (3, False)
            assert CANARY not in "".join(traceback.format_exception(raised.value))
    assert CANARY not in caplog.text
    assert len(server.requests) == 3


def test_a_request_without_credentials(server: CatalogServer) -> None:
    server.add("prod", "sales", "orders")
    settings = server.settings()
    server.token = "right"
    with (
        open_catalog(settings) as catalog,
        pytest.raises(CatalogError, match="requires credentials, for") as caught,
    ):
        listed(catalog)
    assert "give a token or client credentials" in str(caught.value)
    assert "renew" not in str(caught.value)


def test_servers_that_repeat_the_token(server: CatalogServer) -> None:
    def repeat(_: int, request: Request) -> Reply:
        said = f"{request.headers.get('Authorization')} is not welcome"
        body = {"error_code": "DENIED", "message": said, "error": {"message": said, "type": said}}
        return Reply(status=403, body=json.dumps(body).encode())

    server.intercept = repeat
    with (
        open_catalog(server.settings(token=CANARY)) as catalog,
        pytest.raises(CatalogError, match="denies access") as raised,
    ):
        listed(catalog)
    assert CANARY not in str(raised.value)
    assert "***" in str(raised.value)


def test_a_token_that_ends_while_tables_are_listed(server: CatalogServer) -> None:
    options = server.with_client_credentials()
    server.page_size, server.token_serves = 2, 20
    names = [server.add("prod", f"s{number % 5}", f"t{number}") for number in range(40)]
    with open_catalog(server.settings(token="", **options)) as catalog:
        listing = listed(catalog)
    assert [table.name for table in listing.tables] == sorted(names)
    assert listing.failures == ()
    assert server.tokens_issued == 2


def test_a_given_token_that_ends_while_tables_are_listed(server: CatalogServer) -> None:
    server.token, server.token_serves = CANARY, 4
    for number in range(100):
        server.add("prod", f"s{number}", "t")
    with open_catalog(server.settings()) as catalog:
        listing = listed(catalog)
    # One line, not one for each schema.
    (failure,) = listing.failures
    assert failure.where == f"{server.kind}://prod"
    assert "rejects the credentials" in str(failure.error)
    assert "all that follows" in str(failure.error)
    assert len(server.requests) < 40


def test_a_right_that_is_revoked_while_tables_are_listed(server: CatalogServer) -> None:
    for number in range(30):
        server.add("prod", f"s{number:02}", "t")
    refusal = Refusal(403, "PERMISSION_DENIED", "no rights")

    def revoke(number: int, _: Request) -> None:
        if number == 4:
            server.failing["prod", "s29"] = refusal

    server.intercept = revoke
    with open_catalog(server.settings()) as catalog:
        listing = listed(catalog)
    assert [failure.where for failure in listing.failures] == [f"{server.kind}://prod.s29"]
    assert "grant" in str(listing.failures[0].error)
    assert len(listing.tables) == 29


def test_wrong_client_credentials(server: CatalogServer) -> None:
    options = server.with_client_credentials()
    options["client_secret"] = CANARY
    with (
        open_catalog(server.settings(token="", **options)) as catalog,
        pytest.raises(CatalogError, match="invalid_client") as raised,
    ):
        listed(catalog)
    assert CANARY not in str(raised.value)
    assert "client credentials" in str(raised.value)
    assert not raised.value.retryable


def test_a_token_server_that_does_not_answer(server: CatalogServer) -> None:
    options = server.with_client_credentials()
    server.intercept = lambda *_: Reply(status=503)
    with (
        open_catalog(server.settings(token="", **options)) as catalog,
        pytest.raises(CatalogUnavailableError),
    ):
        catalog.check()


def test_a_wrong_address(server: CatalogServer, catalog: Catalog) -> None:
    page = b"<html>Sign in</html>"
    for reply in (
        Reply(status=200, body=page),
        Reply(status=302, headers={"Location": "/login"}),
        Reply(status=404, body=page),
    ):
        server.requests.clear()
        server.intercept = lambda *_, reply=reply: reply
        with pytest.raises(CatalogError, match="address") as raised:
            catalog.check()
        assert not raised.value.retryable
        assert "html" not in str(raised.value)
        assert len(server.requests) == 1


def test_an_address_where_nothing_listens(server: CatalogServer) -> None:
    settings = CatalogSettings(
        kind=server.kind, address="http://127.0.0.1:1", options=server.options
    )
    with (
        open_catalog(settings) as catalog,
        pytest.raises(CatalogUnavailableError, match="does not answer") as raised,
    ):
        listed(catalog)
    assert "check the address" in str(raised.value)


@pytest.mark.parametrize(
    ("address", "options", "problem"),
    [
        (None, {}, "no address"),
        ("ftp://host", {}, "is not an address"),
        (f"https://user:{CANARY}@host", {}, "is not an address"),
        (f"https://host?token={CANARY}", {}, "is not an address"),
        ("https://host", {"tokn": CANARY}, "no option 'tokn'"),
        ("https://host", {"client_id": "x"}, "both a client_id and a client_secret"),
        ("https://host", {"client_secret": CANARY}, "both a client_id and a client_secret"),
    ],
)
def test_settings_that_are_refused(
    server: CatalogServer, address: str | None, options: dict[str, str], problem: str
) -> None:
    settings = CatalogSettings(
        kind=server.kind, address=address, options={**server.options, **options}
    )
    with pytest.raises(InvalidRequestError, match=problem) as raised:
        open_catalog(settings)
    assert CANARY not in str(raised.value)


def test_the_path_of_the_interface_may_be_part_of_the_address(server: CatalogServer) -> None:
    path = {
        "uc": "/api/2.1/unity-catalog/",
        "lakekeeper": "/catalog",
        "polaris": "/api/catalog/",
        "gravitino": "/api",
    }[server.kind]
    name = server.add("prod", "sales", "orders")
    settings = CatalogSettings(kind=server.kind, address=server.url + path, options=server.options)
    with open_catalog(settings) as catalog:
        assert [table.name for table in listed(catalog).tables] == [name]


def test_tokens_are_renewed_before_they_end() -> None:
    server = UnityServer()
    server.token_lifetime = 1000
    with server.running():
        options = server.with_client_credentials()
        now = 0.0
        session = HttpSession()
        authorization = Authorization(
            server.settings(token="", **options), session, elapsed=lambda: now
        )
        first = authorization.token
        now = 939
        assert authorization.token == first
        now = 941
        assert authorization.token != first
        assert server.tokens_issued == 2
        session.close()


@pytest.mark.parametrize("body", [b"[]", b"{}", b"<html>", b'{"access_token": 1}'])
def test_answers_without_a_token(body: bytes) -> None:
    server = UnityServer()
    with server.running():
        options = server.with_client_credentials()
        server.intercept = lambda *_: Reply(status=200, body=body)
        with (
            open_catalog(server.settings(token="", **options)) as catalog,
            pytest.raises(CatalogError, match="no access token"),
        ):
            catalog.check()


def test_client_credentials_are_not_kept_in_texts(server: CatalogServer) -> None:
    options: dict[str, Any] = {
        "client_id": "x",
        "client_secret": CANARY,
        "token_address": "https://t",
    }
    with open_catalog(server.settings(**options)) as catalog:
        assert CANARY not in repr(catalog) + repr(server.settings(**options))
