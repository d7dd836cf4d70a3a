"""Owners and tags that a catalog states only on a further request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from delta_maintenance.catalogs import Aspect, Catalog, open_catalog
from delta_maintenance.catalogs.http import client
from delta_maintenance.catalogs.http.gathering import AT_ONCE
from delta_maintenance.errors import CatalogError, CatalogUnavailableError, InvalidRequestError
from tests.catalogs.test_listing import DENIED, listed
from tests.support.catalogs.catalog_server import CatalogServer, Refusal
from tests.support.catalogs.gravitino_server import GravitinoServer
from tests.support.catalogs.unity_server import DatabricksServer, UnityServer
from tests.support.servers.loopback import Hangup, Reply, Request

pytestmark = pytest.mark.server

BOTH = frozenset(Aspect)


@pytest.fixture(params=[DatabricksServer, GravitinoServer], ids=lambda profile: profile.profile)
def server(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CatalogServer]:
    monkeypatch.setattr(client, "PAUSES", (0.0,) * 3)
    made: CatalogServer = request.param()
    with made.running():
        yield made


def test_tags_come_from_the_table_its_schema_and_its_catalog(
    server: CatalogServer, catalog: Catalog
) -> None:
    orders = server.add("prod", "sales", "orders 2026")
    server.add("prod", "other", "t")
    server.page_size, server.empty_pages = 1, True
    server.tags = {
        ("prod",): {"tier": "silver", "rank": "1", "zone": ""},
        ("prod", "sales"): {"tier": "bronze", "rank": "2", "x": ""},
        orders.parts: {"tier": "gold"},
    }
    server.owners = {orders.parts: "team-a"}
    before = listed(catalog).tables
    assert [dict(table.tags) for table in before] == [{}, {}]
    other, found = catalog.describe(before, BOTH).tables
    values = server.kind == "uc"

    def stated(**tags: str) -> dict[str, str]:
        return {name: value if values else "" for name, value in tags.items()}

    assert found.tags == stated(tier="gold", rank="2", zone="", x="")
    assert other.tags == stated(tier="silver", rank="1", zone="")
    if not values:
        assert (found.owner, other.owner) == ("team-a", None)


def test_only_what_is_asked_for_is_requested(server: CatalogServer, catalog: Catalog) -> None:
    server.add("prod", "sales", "orders")
    tables = listed(catalog).tables
    server.requests.clear()
    (found,) = catalog.describe(tables, frozenset({Aspect.OWNER})).tables
    assert found == tables[0] and not any("tag" in request for request in server.requests)


@pytest.mark.parametrize("refusal", [DENIED, Refusal(500, "INTERNAL", "broken")])
def test_a_table_whose_tags_are_refused_is_a_failure(
    server: CatalogServer, catalog: Catalog, refusal: Refusal
) -> None:
    for name in ("a", "secret", "z"):
        server.add("prod", "sales", name)
    server.failing["tags", "prod", "sales", "secret"] = refusal
    found = catalog.describe(listed(catalog).tables, BOTH)
    assert [table.name.table for table in found.tables] == ["a", "z"]
    (failure,) = found.failures
    assert failure.where == f"{server.kind}://prod.sales.secret"
    assert f"tags of {failure.where}" in str(failure.error)
    assert refusal.code in str(failure.error)
    assert failure.error.exit_status == 3
    assert failure.error.retryable is (refusal.status == 500)


def test_all_refused_tags_are_failures_and_no_error(
    server: CatalogServer, catalog: Catalog
) -> None:
    server.add("prod", "sales", "orders")
    server.failing["tags", "prod", "sales", "orders"] = DENIED
    found = catalog.describe(listed(catalog).tables, BOTH)
    assert not found.tables and len(found.failures) == 1
    assert found.requests > 0


def test_a_catalog_that_stops_answering_leaves_no_table_without_a_failure(
    server: CatalogServer, catalog: Catalog
) -> None:
    for number in range(40):
        server.add("prod", "sales", f"t{number}")
    tables = listed(catalog).tables

    def hang_up(_: int, request: Request) -> Reply | None:
        raise Hangup

    server.intercept = hang_up
    found = catalog.describe(tables, BOTH)
    assert not found.tables
    assert {type(failure.error) for failure in found.failures} == {CatalogUnavailableError}
    assert "uc://prod" in str(found.failures) or "gravitino://prod" in str(found.failures)
    assert len(server.requests) < 40 * 4


def test_at_most_sixteen_requests_are_in_flight(server: CatalogServer, catalog: Catalog) -> None:
    for number in range(3 * AT_ONCE):
        server.add("prod", "sales", f"t{number}")
    tables = listed(catalog).tables
    server.most_in_flight = 0
    full = threading.Barrier(AT_ONCE)

    def together(_: int, request: Request) -> Reply | None:
        if "sales.t" in request.target or "sales%2Et" in request.target:
            full.wait(30)
        return None

    server.intercept = together
    found = catalog.describe(tables, frozenset({Aspect.TAGS}))
    assert len(found.tables) == 3 * AT_ONCE
    assert server.most_in_flight == AT_ONCE


@pytest.mark.parametrize("wrong", [{}, "text", ["text"], [{"key": "tier"}]])
def test_tags_in_another_form_do_not_count_as_absent(
    server: CatalogServer, catalog: Catalog, wrong: object
) -> None:
    server.add("prod", "sales", "orders")
    tables = listed(catalog).tables
    field = "tag_assignments" if server.kind == "uc" else "tags"

    def answer(_: int, request: Request) -> Reply | None:
        if "sales.orders/tags" not in request.target:
            return None
        return Reply(status=200, headers={}, body=json.dumps({field: wrong}).encode())

    server.intercept = answer
    found = catalog.describe(tables, frozenset({Aspect.TAGS}))
    assert not found.tables
    assert "not understood" in str(found.failures[0].error)


def test_a_name_with_a_dot_is_a_failure(server: CatalogServer, catalog: Catalog) -> None:
    server.add("prod", "sales", "a.b")
    found = catalog.describe(listed(catalog).tables, BOTH)
    assert not found.tables
    assert "cannot be requested" in str(found.failures[0].error)


def test_the_setting_decides(server: CatalogServer) -> None:
    server.add("prod", "sales", "orders")
    for setting, always, asks in (("true", True, True), ("false", False, False)):
        with open_catalog(server.settings(tags=setting)) as opened:
            (table,) = listed(opened).tables
            assert opened.describes_all is always
            assert (Aspect.TAGS in table.further) is asks
            # Without tags, conditions on the owner are still decided by a request.
            assert (Aspect.OWNER in table.further) is (server.kind == "gravitino")
    with pytest.raises(InvalidRequestError, match="tags"), open_catalog(server.settings(tags="x")):
        pass


def test_the_open_source_server_is_not_asked_for_tags() -> None:
    with UnityServer().running() as server, open_catalog(server.settings()) as catalog:
        server.add("prod", "sales", "orders")
        tables = listed(catalog).tables
        before = len(server.requests)
        assert catalog.describe(tables, BOTH).tables == tables
        assert len(server.requests) == before


def test_a_wrong_token_is_one_failure(server: CatalogServer, catalog: Catalog) -> None:
    for number in range(40):
        server.add("prod", "sales", f"t{number}")
    tables = listed(catalog).tables
    server.token = "another"
    found = catalog.describe(tables, BOTH)
    assert not found.tables
    assert {type(failure.error) for failure in found.failures} == {CatalogError}
    assert len(found.failures) <= 2


def test_an_owner_without_a_name_is_a_failure() -> None:
    with GravitinoServer().running() as server, open_catalog(server.settings()) as catalog:
        server.add("prod", "sales", "orders")
        tables = listed(catalog).tables
        body = json.dumps({"owner": {"type": "user"}}).encode()
        server.intercept = lambda *_: Reply(status=200, headers={}, body=body)
        found = catalog.describe(tables, frozenset({Aspect.OWNER}))
    assert not found.tables
    assert "the owner of gravitino://prod.sales.orders" in str(found.failures[0].error)
