from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pytest
from hdfs_cluster import HdfsCluster

from delta_maintenance.address import Address
from delta_maintenance.storage import Put
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.http_session import HttpSession
from delta_maintenance.storage.hdfs.client import HdfsClient
from delta_maintenance.storage.hdfs.options import HdfsOptions
from delta_maintenance.storage.hdfs.store import HdfsStore
from delta_maintenance.testing.fault_contract import FaultContract
from delta_maintenance.testing.fault_proxy import FaultProxy, serve_faults
from delta_maintenance.testing.loopback import Request
from delta_maintenance.testing.store_contract import StoreContract, contend_in_processes

PATIENCE = 2.0
"""Seconds that a client under test waits for an answer: a busy JVM takes its time."""


def new_root(hdfs: HdfsCluster) -> str:
    return hdfs.address(f"/user/{uuid.uuid4()}/ware%20house/a b")


class TestHdfsStore(StoreContract):
    entries = 1_200
    doomed = 60
    races = int(os.environ.get("DELTA_MAINTENANCE_RACES", "25"))
    refused_names = frozenset(["a:b"])

    @pytest.fixture
    def store(self, hdfs: HdfsCluster) -> Iterator[HdfsStore]:
        self.opened = [HdfsStore(new_root(hdfs))]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(self, store: Store) -> Store:
        self.opened.append(HdfsStore(store.root))
        return self.opened[-1]

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        assert isinstance(store, HdfsStore)
        fill(store, paths)

    def contend(self, store: Store, paths: Sequence[str]) -> list[list[Put]]:
        return contend_in_processes(partial(HdfsStore, store.root), paths)


def fill(store: HdfsStore, paths: Iterable[str]) -> None:
    """Makes empty files directly under their names: without bytes no data node is waited for."""
    from concurrent.futures import ThreadPoolExecutor

    def make(path: str) -> None:
        store._client.upload(f"{store._folder}/{path}", b"", overwrite="true")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, paths))


class TestFaults(FaultContract):
    @pytest.fixture
    def proxy(self, hdfs: HdfsCluster) -> Iterator[FaultProxy]:
        self.root = f"/user/{uuid.uuid4()}/t"
        with serve_faults(hdfs.data_node_address()) as behind:
            redirects = {hdfs.data_node_address(): behind.url}
            with serve_faults(f"http://{hdfs.http}", redirects=redirects) as proxy:
                # One choice for the requests to both nodes.
                behind.choose = lambda request: proxy.choose(request)
                behind.injected = proxy.injected
                yield proxy

    def open_through(self, proxy: FaultProxy) -> Store:
        root = f"webhdfs://{proxy.url.removeprefix('http://')}{self.root}"
        options = HdfsOptions.parse(None, Address.parse(root))
        session = HttpSession(timeout=(1, PATIENCE))
        return HdfsStore(root, client=HdfsClient(options, session=session, sleep=lambda _: None))

    def publishes(self, request: Request) -> bool:
        return "op=RENAME" in request.target

    def reads(self, request: Request) -> bool:
        return "op=OPEN" in request.target and "namenoderpcaddress" in request.target


@pytest.fixture
def store(hdfs: HdfsCluster) -> Iterator[HdfsStore]:
    store = HdfsStore(new_root(hdfs))
    yield store
    store.close()
