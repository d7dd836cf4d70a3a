"""Listing and resolving tables, for each kind of catalog over HTTP."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from delta_maintenance.address import CatalogName
from delta_maintenance.catalogs import Catalog, CatalogListing, PassedOver, open_catalog
from delta_maintenance.catalogs.http.gathering import AT_ONCE
from delta_maintenance.errors import CatalogError, CatalogUnavailableError
from tests.support.catalogs.catalog_server import CatalogServer, Entry, Refusal
from tests.support.catalogs.generic_table_servers import LakekeeperServer
from tests.support.catalogs.names import AWKWARD
from tests.support.servers.loopback import Hangup, Reply, Request

pytestmark = pytest.mark.server

DENIED = Refusal(403, "PERMISSION_DENIED", "no rights")


def _all(_: tuple[str, ...]) -> bool:
    return True


def listed(catalog: Catalog, **more: Any) -> CatalogListing:
    """Lists everything, unless told otherwise."""
    return catalog.list(**{"leads_to": _all, "includes": _all, "known_tables": {}, **more})


def _names(listing: CatalogListing) -> list[str]:
    return [str(table.name) for table in listing.tables]


def test_tables_are_listed_by_name(server: CatalogServer, catalog: Catalog) -> None:
    names = [server.add("prod", "sales", f"t{number}") for number in range(3)]
    names.append(server.add("dev", "sales", "orders"))
    server.namespaces["dev", "empty"] = {}
    listing = listed(catalog)
    assert [table.name for table in listing.tables] == sorted(names)
    assert listing.failures == ()
    assert listing.requests == len(server.requests)
    assert {table.location for table in listing.tables} <= {
        entry.location for entries in server.namespaces.values() for entry in entries.values()
    }


def test_pages_are_followed_also_through_empty_ones(
    server: CatalogServer, catalog: Catalog
) -> None:
    server.page_size, server.empty_pages = 2, True
    names = [
        server.add(of, schema, f"t{number}")
        for of in ("a", "b", "c")
        for schema in ("s", "t", "u")
        for number in range(5)
    ]
    assert [table.name for table in listed(catalog).tables] == sorted(names)


def test_fields_of_a_table(server: CatalogServer, catalog: Catalog) -> None:
    entry = Entry(
        location="s3://bucket/a b%20c/ü",
        owner="team-a",
        comment="all orders",
        properties={"team": "a"},
    )
    name = server.add("prod", "sales", "orders", entry=entry)
    (table,) = listed(catalog).tables
    assert (table.name, table.location, table.comment) == (name, entry.location, entry.comment)
    assert table.properties["team"] == "a"
    assert not table.catalog_managed
    resolved = catalog.resolve(name)
    assert (resolved.name, resolved.location) == (name, entry.location)
    assert (resolved.comment, resolved.properties) == (table.comment, table.properties)


def test_other_things_are_counted(server: CatalogServer, catalog: Catalog) -> None:
    server.add("prod", "sales", "orders")
    server.add("prod", "sales", "ice", entry=Entry(location="s3://b/i", format="ICEBERG"))
    server.add("prod", "sales", "csv", entry=Entry(location="s3://b/c", format="CSV"))
    server.add("prod", "sales", "unwanted")
    listing = listed(catalog, includes=lambda parts: parts[-1] != "unwanted")
    assert _names(listing) == [f"{server.kind}://prod.sales.orders"]
    assert listing.passed_over == {PassedOver.OTHER_FORMAT: 2, PassedOver.NOT_IN_POLICY: 1}
    with pytest.raises(CatalogError, match="no Delta table"):
        catalog.resolve(CatalogName(server.kind, ("prod", "sales", "ice")))


def test_only_namespaces_that_lead_to_wanted_names_are_requested(
    server: CatalogServer, catalog: Catalog
) -> None:
    server.add("prod", "sales", "orders")
    server.add("prod", "other", "t")
    server.add("dev", "sales", "t")
    listing = listed(catalog, leads_to=lambda parts: parts in {("prod",), ("prod", "sales")})
    assert _names(listing) == [f"{server.kind}://prod.sales.orders"]
    assert not any("other" in request or "dev" in request for request in server.requests)


def test_one_catalog_of_the_server(server: CatalogServer) -> None:
    server.add("prod", "sales", "orders")
    server.add("dev", "sales", "orders")
    with open_catalog(server.settings(catalog="prod")) as catalog:
        assert _names(listed(catalog)) == [f"{server.kind}://prod.sales.orders"]
        assert "answers" in catalog.check()
    assert not any("dev" in request for request in server.requests)


@pytest.mark.parametrize("refusal", [DENIED, Refusal(500, "INTERNAL", "broken")])
def test_a_broken_namespace_hides_no_other(
    server: CatalogServer, catalog: Catalog, refusal: Refusal
) -> None:
    for schema in ("a", "broken", "z"):
        server.add("prod", schema, "t")
    server.add("broken", "s", "t")
    server.failing["prod", "broken"] = server.failing["broken",] = refusal
    listing = listed(catalog)
    assert _names(listing) == [f"{server.kind}://prod.a.t", f"{server.kind}://prod.z.t"]
    assert [failure.where for failure in listing.failures] == [
        f"{server.kind}://broken",
        f"{server.kind}://prod.broken",
    ]
    for failure in listing.failures:
        assert failure.where in str(failure.error)
        assert refusal.code in str(failure.error)
        assert failure.error.retryable is (refusal.status == 500)
        assert isinstance(failure.error, CatalogError)


def test_a_broken_table_hides_no_other(server: CatalogServer, catalog: Catalog) -> None:
    for name in ("a", "bad", "nowhere", "z"):
        server.add("prod", "sales", name)
    tables = server.namespaces["prod", "sales"]
    tables["nowhere"] = Entry(location=None)
    tables["bad"] = Entry(location="s3://user:password@bucket/t")
    listing = listed(catalog)
    assert [table.name.table for table in listing.tables] == ["a", "z"]
    bad, nowhere = listing.failures
    assert "unusable location" in str(bad.error) and "password" not in str(bad.error)
    assert "does not state the location" in str(nowhere.error)
    with pytest.raises(CatalogError, match="does not state the location"):
        catalog.resolve(CatalogName(server.kind, ("prod", "sales", "nowhere")))


def test_a_table_that_cannot_be_loaded_hides_no_other(
    server: CatalogServer, catalog: Catalog
) -> None:
    for name in ("a", "denied", "z"):
        server.add("prod", "sales", name)
    server.failing["prod", "sales", "denied"] = DENIED
    listing = listed(catalog)
    if server.kind == "uc":
        # Tables come with the list.
        assert not listing.failures
    else:
        assert [table.name.table for table in listing.tables] == ["a", "z"]
        assert [each.where for each in listing.failures] == [f"{server.kind}://prod.sales.denied"]
    with pytest.raises(CatalogError, match="denies access"):
        catalog.resolve(CatalogName(server.kind, ("prod", "sales", "denied")))


@pytest.mark.parametrize("lost", ["before", "after"])
def test_lost_answers_are_requested_again(
    server: CatalogServer, catalog: Catalog, lost: str
) -> None:
    server.page_size = 3
    names = [server.add("prod", "sales", f"t{number}") for number in range(9)]

    def hang_up(number: int, _: Any) -> Reply | None:
        if number % 3 == 1 and lost == "before":
            raise Hangup
        return None

    server.intercept = hang_up
    if lost == "after":
        server.lose_answers = set(range(1, 200, 3))
    listing = listed(catalog)
    assert [table.name for table in listing.tables] == names
    assert listing.failures == ()


def test_a_catalog_that_stops_answering_gives_one_failure(
    server: CatalogServer, catalog: Catalog
) -> None:
    for number in range(40):
        server.add("prod", f"s{number:02}", "t")

    def hang_up(number: int, _: Any) -> Reply | None:
        if number > 4:
            raise Hangup
        return None

    server.intercept = hang_up
    listing = listed(catalog)
    # The first parts that are not answered, then the catalog.
    assert 1 <= len(listing.failures) <= 3
    assert listing.failures[0].where == f"{server.kind}://prod"
    assert len(server.requests) < 150
    assert all(failure.error.retryable for failure in listing.failures)
    assert "all that follows" in " ".join(str(failure.error) for failure in listing.failures)


def test_a_catalog_that_is_down_raises(server: CatalogServer, catalog: Catalog) -> None:
    server.intercept = lambda *_: Reply(status=503)
    for call in (lambda: listed(catalog), catalog.check):
        with pytest.raises(CatalogUnavailableError, match="at present") as raised:
            call()
        assert "\n" not in str(raised.value)
        assert raised.value.exit_status == 3


def test_too_many_requests_are_sent_again(server: CatalogServer, catalog: Catalog) -> None:
    name = server.add("prod", "sales", "orders")
    server.intercept = lambda number, _: Reply(status=429) if number % 2 else None
    assert [table.name for table in listed(catalog).tables] == [name]


def test_a_list_that_never_ends_is_given_up(server: CatalogServer, catalog: Catalog) -> None:
    if server.kind == "gravitino":
        pytest.skip("its lists have no pages")
    server.add("prod", "sales", "orders")

    def again(items: list[Any], _: str | None) -> tuple[list[Any], str]:
        return items, "again"

    server.page = again  # type: ignore[method-assign, assignment]
    listing = listed(catalog)
    assert listing.failures
    assert "for ever" in str(listing.failures[0].error)


def test_unknown_names(server: CatalogServer, catalog: Catalog) -> None:
    server.add("prod", "sales", "orders")
    for parts in (("prod", "sales", "none"), ("prod", "none", "t"), ("none", "sales", "t")):
        with pytest.raises(CatalogError, match="does not know") as raised:
            catalog.resolve(CatalogName(server.kind, parts))
        assert str(CatalogName(server.kind, parts)) in str(raised.value)
        assert not raised.value.retryable
    with pytest.raises(CatalogError, match="write it like"):
        catalog.resolve(CatalogName(server.kind, ("sales", "orders")))


def test_an_unknown_catalog(server: CatalogServer) -> None:
    server.add("prod", "sales", "orders")
    with open_catalog(server.settings(catalog="none")) as catalog:
        for call in (lambda: listed(catalog), catalog.check):
            with pytest.raises(CatalogError, match="does not know") as raised:
                call()
            assert f"{server.kind}://none" in str(raised.value)


def test_sixteen_requests_are_in_flight(server: CatalogServer, catalog: Catalog) -> None:
    for number in range(32):
        server.add("prod", f"s{number}", f"t{number}")
    # One more request would come while the others are waiting.
    together = threading.Barrier(AT_ONCE, action=lambda: time.sleep(0.1))

    def wait(_: int, request: Request) -> Reply | None:
        if request.target.partition("?")[0].endswith("tables"):
            together.wait(timeout=20)
        return None

    server.intercept = wait
    assert len(listed(catalog).tables) == 32
    assert server.most_in_flight == AT_ONCE


def test_known_tables_are_not_loaded_again(server: CatalogServer, catalog: Catalog) -> None:
    for number in range(5):
        server.add("prod", "sales", f"t{number}")
    known = {table.name: table for table in listed(catalog).tables}
    server.namespaces["prod", "sales"]["t0"] = Entry(location="s3://bucket/moved")
    first = len(server.requests)
    listing = listed(catalog, known_tables=known)
    moved = {table.name.table: table.location for table in listing.tables}["t0"]
    assert moved == "s3://bucket/moved"
    loads = sum("generic-tables/" in request for request in server.requests[first:])
    if isinstance(server, LakekeeperServer):
        assert loads == 1
        assert [table for table in listing.tables if known[table.name] is table] == list(
            listing.tables[1:]
        )


def test_soft_deleted_tables_are_left_alone(server: CatalogServer, catalog: Catalog) -> None:
    if server.profile not in ("databricks", "lakekeeper"):
        pytest.skip("it has no soft deletion that lists show")
    server.add("prod", "sales", "orders")
    server.add("prod", "sales", "gone", entry=Entry(location="s3://b/g", deleted=True))
    assert [table.name.table for table in listed(catalog).tables] == ["orders"]
    with pytest.raises(CatalogError):
        catalog.resolve(CatalogName(server.kind, ("prod", "sales", "gone")))


part = st.one_of(
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20),
    st.sampled_from(
        [
            "a.b",
            "a b",
            "100%",
            "%2E",
            "a%2Eb",
            "a/b?c#d@e:f*",
            "ü",
            "表",
            "..a",
            "'",
            '"',
            "a+b",
            "~",
        ]
    ),
    st.sampled_from("xü表").map(lambda letter: letter * 255),
)


def test_awkward_names(server: CatalogServer, catalog: Catalog) -> None:
    names = [server.add("prod", "sales", part) for part in AWKWARD]
    names += [server.add(part, part, "t") for part in AWKWARD]
    tables = {table.name: table for table in listed(catalog).tables}
    assert tables.keys() == set(names)
    for name, table in tables.items():
        assert CatalogName.parse(str(name)) == name
        assert catalog.resolve(name).location == table.location


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=st.tuples(part, part, part))
def test_any_name(server: CatalogServer, catalog: Catalog, parts: tuple[str, str, str]) -> None:
    assume(not {".", "..", "information_schema"} & set(parts))
    server.namespaces.clear()
    # The cached prefixes of other examples stay valid, because they depend on the name alone.
    name = server.add(*parts)
    (table,) = listed(catalog).tables
    assert table.name == name
    assert CatalogName.parse(str(name)) == name
    assert catalog.resolve(name).location == table.location


FIELDS = (
    ("catalogs", "schemas", "tables", "warehouses", "namespaces", "identifiers", "table", "catalog")
    + ("overrides", "prefix", "name", "format", "data_source_format", "storage_location")
    + ("properties", "location", "base-location", "provider", "next_page_token", "id")
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["DELTA", "t", "s3://b", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6)
    ),
    max_leaves=12,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bodies=st.lists(json_values, min_size=1, max_size=6))
def test_any_answers(server: CatalogServer, catalog: Catalog, bodies: list[Any]) -> None:
    answers = itertools.cycle(json.dumps(body).encode() for body in bodies)
    server.intercept = lambda *_: Reply(status=200, body=next(answers))
    for call in (
        lambda: listed(catalog),
        catalog.check,
        lambda: catalog.resolve(CatalogName(server.kind, ("prod", "sales", "orders"))),
    ):
        # The library has no other answer to nonsense.
        with contextlib.suppress(CatalogError):
            call()


def test_names_that_no_path_can_have(server: CatalogServer, catalog: Catalog) -> None:
    server.add("prod", "sales", "orders")
    with pytest.raises(CatalogError):
        catalog.resolve(CatalogName(server.kind, ("prod", "sales", "..")))
