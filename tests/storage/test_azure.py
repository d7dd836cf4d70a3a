from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from delta_maintenance.storage.azure import AzureStore
from delta_maintenance.storage.base import Put, Store
from delta_maintenance.testing.azure_server import AzureServer
from delta_maintenance.testing.store_contract import StoreContract, contend_in_processes


class TestAzureStore(StoreContract):
    # The emulator takes milliseconds for each.
    entries = 500
    doomed = 200

    @pytest.fixture
    def store(self, azure_server: AzureServer, azure_container: str) -> Iterator[AzureStore]:
        self.server = azure_server
        root = f"az://{azure_container}/ware%20house/a b"
        self.opened = [AzureStore(root, azure_server.storage_options)]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(self, store: Store) -> Store:
        self.opened.append(AzureStore(store.root, self.server.storage_options))
        return self.opened[-1]

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: store.put(path, b""), paths))

    def contend(self, store: Store, paths: Sequence[str]) -> list[list[Put]]:
        options = self.server.storage_options
        return contend_in_processes(partial(AzureStore, store.root, options), paths)
