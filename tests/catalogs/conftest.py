"""Each kind of catalog over HTTP, with a fake server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delta_maintenance.catalogs import Catalog, open_catalog
from delta_maintenance.catalogs.http import client
from tests.support.catalogs.catalog_server import CatalogServer
from tests.support.catalogs.generic_table_servers import LakekeeperServer, PolarisServer
from tests.support.catalogs.gravitino_server import GravitinoServer
from tests.support.catalogs.unity_server import DatabricksServer, UnityServer

PROFILES = (UnityServer, DatabricksServer, LakekeeperServer, PolarisServer, GravitinoServer)


@pytest.fixture(params=PROFILES, ids=lambda profile: profile.profile)
def server(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CatalogServer]:
    """An empty server, and clients that do not pause before they try again."""
    monkeypatch.setattr(client, "PAUSES", (0.0,) * 3)
    made: CatalogServer = request.param()
    with made.running():
        yield made


@pytest.fixture
def catalog(server: CatalogServer) -> Iterator[Catalog]:
    """A client for all catalogs of the server."""
    with open_catalog(server.settings()) as opened:
        yield opened
