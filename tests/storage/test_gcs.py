from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pytest

from delta_maintenance.storage.base import Put, Store
from delta_maintenance.storage.gcs import GCSStore
from delta_maintenance.testing.gcs_server import GCSServer
from delta_maintenance.testing.store_contract import StoreContract, contend_in_processes


class TestGCSStore(StoreContract):
    @pytest.fixture
    def store(self, gcs_server: GCSServer, gcs_bucket: str) -> Iterator[GCSStore]:
        self.server = gcs_server
        self.opened = [GCSStore(f"gs://{gcs_bucket}/ware%20house/a b", gcs_server.storage_options)]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(self, store: Store) -> Store:
        self.opened.append(GCSStore(store.root, self.server.storage_options))
        return self.opened[-1]

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        bucket, _, prefix = store.root.removeprefix("gs://").partition("/")
        self.server.fill(bucket, [f"{prefix}/{path}" for path in paths])

    def contend(self, store: Store, paths: Sequence[str]) -> list[list[Put]]:
        options = self.server.storage_options
        return contend_in_processes(partial(GCSStore, store.root, options), paths)
