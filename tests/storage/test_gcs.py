from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import pytest

from delta_maintenance.storage.base import Store
from delta_maintenance.storage.gcs import GCSStore
from delta_maintenance.testing.gcs_server import GCSServer, serve_gcs
from delta_maintenance.testing.store_contract import StoreContract


@pytest.fixture(scope="module")
def server() -> Iterator[GCSServer]:
    with serve_gcs() as server:
        yield server


@pytest.fixture
def gcs_bucket(server: GCSServer) -> str:
    name = f"bucket-{uuid.uuid4()}"
    server.make_bucket(name)
    return name


class TestGCSStore(StoreContract):
    @pytest.fixture
    def store(self, server: GCSServer, gcs_bucket: str) -> Iterator[GCSStore]:
        self.server = server
        self.opened = [GCSStore(f"gs://{gcs_bucket}/ware%20house/a b", server.storage_options)]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(self, store: Store) -> Store:
        self.opened.append(GCSStore(store.root, self.server.storage_options))
        return self.opened[-1]

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        bucket, _, prefix = store.root.removeprefix("gs://").partition("/")
        self.server.fill(bucket, [f"{prefix}/{path}" for path in paths])
