"""Requests and time for 5,000 tables."""

from __future__ import annotations

import time

import pytest

from delta_maintenance.catalogs import Catalog
from tests.catalogs.test_listing import listed
from tests.support.catalogs.catalog_server import CatalogServer
from tests.support.catalogs.generic_table_servers import LakekeeperServer

pytestmark = [pytest.mark.server, pytest.mark.cases]

TABLES, SCHEMAS = 5000, 10


def test_five_thousand_tables(server: CatalogServer, catalog: Catalog) -> None:
    for number in range(TABLES):
        server.add("prod", f"s{number % SCHEMAS}", f"t{number}")
    started = time.monotonic()
    listing = listed(catalog)
    seconds = time.monotonic() - started
    print(f"{server.profile}: {listing.requests} requests, {seconds:.1f} s")
    assert len(listing.tables) == TABLES
    assert seconds < 60
    # Beside the tables: catalogs, schemas, and namespaces below each of these.
    beside = 3 + SCHEMAS
    if server.kind == "uc":
        assert listing.requests <= TABLES / 100 + beside
        return
    assert listing.requests <= TABLES + TABLES / 100 + 2 * beside
    if isinstance(server, LakekeeperServer):
        again = listed(catalog, known_tables={table.name: table for table in listing.tables})
        assert again.tables == listing.tables
        assert again.requests <= TABLES / 100 + 2 * beside
