"""The contract of stores on a real HDFS, the same for both of its interfaces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import pytest

from delta_maintenance.address import Address
from delta_maintenance.storage import Put
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.hdfs.store import HdfsStore
from delta_maintenance.testing.store_contract import StoreContract, contend_in_processes
from tests.support.servers.hdfs_cluster import make_empty_files

PATIENCE = 2.0
"""Seconds that a client under test waits for an answer: a busy JVM takes its time."""


class HdfsStoreContract(StoreContract):
    """Needs a fixture `root`, the address of a new folder."""

    entries = 250
    doomed = 30
    refused_names = frozenset(["a:b"])
    environment: Mapping[str, str] = {}
    """The environment that other processes need for authentication."""

    @pytest.fixture
    def store(self, root: str) -> Iterator[HdfsStore]:
        self.opened = [HdfsStore(Address.parse(root))]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(self, store: Store) -> Store:
        self.opened.append(HdfsStore(store.address))
        return self.opened[-1]

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        assert isinstance(store, HdfsStore)
        make_empty_files(store, paths)

    def contend(self, store: Store, paths: Sequence[str]) -> list[list[Put]]:
        return contend_in_processes(partial(open_with, self.environment, store.root), paths)


def open_with(environment: Mapping[str, str], root: str) -> HdfsStore:
    """A store in a process that belongs to this test alone, and gets its environment here."""
    os.environ.update(environment)
    return HdfsStore(Address.parse(root))
