"""What only one kind of catalog has."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from delta_maintenance.address import Access, CatalogName
from delta_maintenance.catalogs import Aspect, PassedOver, open_catalog
from delta_maintenance.catalogs.http.gathering import AT_ONCE
from delta_maintenance.errors import CatalogError, InvalidRequestError
from tests.catalogs.test_listing import listed
from tests.support.catalogs.catalog_server import Entry
from tests.support.catalogs.generic_table_servers import LakekeeperServer, PolarisServer
from tests.support.catalogs.gravitino_server import GravitinoServer
from tests.support.catalogs.unity_server import DatabricksServer, UnityServer

pytestmark = pytest.mark.server

CONFIG = {
    "s3.access-key-id": "key",
    "s3.secret-access-key": "canary-secret",
    "s3.session-token": "canary-session",
    "s3.session-token-expires-at-ms": "1800000000000",
}


@pytest.fixture
def unity() -> Iterator[UnityServer]:
    with UnityServer().running() as server:
        yield server


@pytest.fixture(params=[LakekeeperServer, PolarisServer])
def vendor(request: pytest.FixtureRequest) -> Iterator[LakekeeperServer | PolarisServer]:
    with request.param().running() as server:
        yield server


def test_kinds_of_tables_in_unity_catalog(unity: UnityServer) -> None:
    managed = {"delta.feature.catalogManaged": "supported"}
    unity.add("main", "s", "a", entry=Entry(location="s3://b/a", type="MANAGED"))
    entry = Entry(location="s3://b/b", type="MANAGED", properties=managed)
    unity.add("main", "s", "b", entry=entry)
    unity.add("main", "s", "local", entry=Entry(location="file:///tables/t"))
    for kind in ("VIEW", "MATERIALIZED_VIEW", "STREAMING_TABLE", "METRIC_VIEW"):
        unity.add("main", "s", kind.lower(), entry=Entry(location="s3://b/v", type=kind))
    with open_catalog(unity.settings()) as catalog:
        listing = listed(catalog)
    a, b, local = listing.tables
    assert (a.catalog_managed, b.catalog_managed) == (False, True)
    assert (a.vends_credentials, local.vends_credentials) == (True, False)
    assert a.table_id is not None and a.entity_tag is not None
    assert listing.passed_over == {PassedOver.VIEW: 4}
    with open_catalog(unity.settings(vend="false")) as catalog:
        assert not any(table.vends_credentials for table in listed(catalog).tables)


def test_owners_in_unity_catalog(unity: UnityServer) -> None:
    unity.add("main", "s", "t", entry=Entry(location="s3://b/t", owner="team-a"))
    with open_catalog(unity.settings()) as catalog:
        assert [table.owner for table in listed(catalog).tables] == ["team-a"]


def test_only_databricks_finds_names_in_any_case(unity: UnityServer) -> None:
    unity.add("main", "sales", "orders")
    name = CatalogName.parse("uc://Main.Sales.ORDERS")
    with (
        open_catalog(unity.settings()) as catalog,
        pytest.raises(CatalogError, match="check the name and its case"),
    ):
        catalog.resolve(name)
    with DatabricksServer().running() as databricks:
        databricks.add("main", "sales", "orders")
        with open_catalog(databricks.settings()) as catalog:
            assert str(catalog.resolve(name).name) == "uc://main.sales.orders"


def test_gravitino_without_authorization_has_no_owners() -> None:
    with GravitinoServer().running() as server:
        server.has_authorization = False
        for number in range(40):
            server.add("prod", "sales", f"t{number}")
        server.tags["prod", "sales", "t1"] = {"tier": "gold"}
        with open_catalog(server.settings(tags="true")) as catalog:
            tables = listed(catalog).tables
            server.requests.clear()
            found = catalog.describe(tables, frozenset(Aspect))
        assert (len(found.tables), found.failures) == (40, ())
        assert found.without == {Aspect.OWNER}
        assert {table.owner for table in found.tables} == {None}
        assert [table.name.table for table in found.tables if table.tags] == ["t1"]
        # The other tables are not asked for.
        assert sum("/owners/" in request for request in server.requests) <= AT_ONCE


def test_a_catalog_of_gravitino_that_is_switched_off_hides_no_other() -> None:
    with GravitinoServer().running() as server:
        server.add("off", "sales", "t")
        name = server.add("on", "sales", "t")
        server.not_in_use = frozenset(("off",))
        with open_catalog(server.settings()) as catalog:
            listing = listed(catalog)
            with pytest.raises(CatalogError, match="CatalogNotInUse.*switch it on"):
                catalog.resolve(CatalogName(server.kind, ("off", "sales", "t")))
    assert [table.name for table in listing.tables] == [name]
    (failure,) = listing.failures
    assert failure.where == "gravitino://off" and "switch it on" in str(failure.error)


def test_deleted_tables_of_databricks_are_counted() -> None:
    with DatabricksServer().running() as server:
        server.add("main", "s", "gone", entry=Entry(location="s3://b/g", deleted=True))
        server.namespaces["main", "information_schema"] = {"views": Entry()}
        with open_catalog(server.settings()) as catalog:
            assert listed(catalog).passed_over == {PassedOver.DELETED: 1}
        assert not any("information_schema" in request for request in server.requests)
        assert all("max_results=0" in request for request in server.requests)
        lists = [request for request in server.requests if "/tables?" in request]
        assert lists and all("omit_columns=true" in request for request in lists)


def test_namespaces_of_several_levels(vendor: LakekeeperServer | PolarisServer) -> None:
    vendor.page_size = 1
    names = [
        vendor.add("lake", "top", "t"),
        vendor.add("lake", "top", "a.b", "deep", "t"),
        vendor.add("lake", "top", "c", "t"),
    ]
    with open_catalog(vendor.settings(catalog="lake")) as catalog:
        assert [table.name for table in listed(catalog).tables] == sorted(names)
        assert catalog.resolve(names[1]).name == names[1]


def test_vended_credentials(vendor: LakekeeperServer | PolarisServer) -> None:
    name = vendor.add("lake", "s", "t", entry=Entry(location="s3://bucket/t"))
    vendor.credentials = [
        {"prefix": "s3://bucket/t", "config": CONFIG},
        {"prefix": "s3://bucket", "config": {}},
    ]
    with open_catalog(vendor.settings()) as catalog:
        # Released servers of Polaris vend none.
        assert catalog.resolve(name).vends_credentials is (vendor.kind == "lakekeeper")
    with open_catalog(vendor.settings(vend="true")) as catalog:
        table = catalog.resolve(name)
        assert table.vends_credentials
        (found,) = catalog.credentials(table, Access.READ_WRITE)
        assert (found.prefix, found.access) == ("s3://bucket/t", Access.READ_WRITE)
        assert found.expires_at == datetime(2027, 1, 15, 8, tzinfo=UTC)
        assert found.options["AWS_SECRET_ACCESS_KEY"] == "canary-secret"
        assert "canary" not in repr(found) + repr(table)
        vendor.credentials = []
        assert catalog.credentials(table, Access.READ) == ()
        vendor.namespaces.clear()
        with pytest.raises(CatalogError, match="does not know"):
            catalog.credentials(table, Access.READ)


def test_signing_by_lakekeeper_is_refused() -> None:
    with LakekeeperServer().running() as server:
        name = server.add("lake", "s", "t")
        config = {"s3.remote-signing-enabled": "true"}
        server.credentials = [{"prefix": "s3://bucket", "config": config}]
        with open_catalog(server.settings()) as catalog:
            table = catalog.resolve(name)
            with pytest.raises(CatalogError, match="signs each request"):
                catalog.credentials(table, Access.READ)


def test_headers_of_lakekeeper_and_polaris() -> None:
    with LakekeeperServer().running() as lakekeeper, PolarisServer().running() as polaris:
        for server, option, header in (
            (lakekeeper, "project", "x-project-id"),
            (polaris, "realm", "Polaris-Realm"),
        ):
            with open_catalog(server.settings(**{option: "mine"})) as catalog:
                catalog.check()
            assert {request.headers[header] for request in server.received} == {"mine"}


def test_only_generic_lakehouses_of_gravitino_are_listed() -> None:
    with GravitinoServer().running() as server:
        name = server.add("lake", "s", "t")
        server.add("mysql", "s", "t")
        server.providers["mysql"] = "jdbc-mysql"
        with open_catalog(server.settings()) as catalog:
            assert [table.name for table in listed(catalog).tables] == [name]
        with open_catalog(server.settings(catalog="mysql", user="me")) as catalog:
            listing = listed(catalog)
            with pytest.raises(CatalogError, match="provider"):
                catalog.check()
        assert "provider 'jdbc-mysql'" in str(listing.failures[0].error)
        assert server.received[-1].headers["Authorization"] == "Basic bWU6LQ=="
        settings = server.settings(metalake="")
        with pytest.raises(InvalidRequestError, match="metalake"):
            open_catalog(settings)
