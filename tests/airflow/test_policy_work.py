"""From a policy to its tables by way of Airflow's connections."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml

from delta_maintenance.storage import open_store
from delta_maintenance_airflow.policy_work import PolicyWork
from tests.support.emulators.gcs_server import GCSServer, serve_gcs
from tests.support.emulators.s3_server import S3Server, serve_s3
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

Server = S3Server | GCSServer
_SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "s3": serve_s3,
    "gs": serve_gcs,
}


@pytest.fixture(params=sorted(_SERVERS))
def lake(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    """A bucket with one table in it."""
    scheme = request.param
    with _SERVERS[scheme]() as server:
        server.make_bucket("lake")
        address = f"{scheme}://lake/sales/orders"
        builder = TableBuilder(open_store(address, server.storage_options))
        builder.commit([protocol(), metadata()])
        yield f"{scheme}://lake", server


def test_a_pattern_is_searched_through_the_connection_of_whichever_store(
    airflow_db: None, lake: tuple[str, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, server = lake
    extra = {"endpoint_url": server.url, "anonymous": True}
    connection = {"conn_type": "delta", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    path = tmp_path / "policy.yaml"
    tables = [{"pattern": f"{root}/**", "storage": {"connection": "lake"}}]
    path.write_text(yaml.safe_dump({"version": 1, "tables": tables}))
    work = PolicyWork(str(path))
    found = work.session.discover()
    assert [(each.name, each.uri) for each in found.tables] == [
        ("sales/orders", f"{root}/sales/orders")
    ]
    assert not found.unlisted
