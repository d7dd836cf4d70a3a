from __future__ import annotations

import uuid

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(Address.parse(f"memory://{uuid.uuid4()}/warehouse/table"))

    def reopen(self, store: Store) -> Store:
        return MemoryStore(store.address)


def test_stores_of_one_name_share_their_files_and_others_do_not() -> None:
    name = str(uuid.uuid4())
    MemoryStore(Address.parse(f"memory://{name}/a/t/")).put("x", b"1")
    assert MemoryStore(Address.parse(f"memory://{name}/a/t")).read("x") == b"1"
    assert MemoryStore(Address.parse(f"memory://{name}")).read("a/t/x") == b"1"
    assert MemoryStore(Address.parse(f"memory://{name}/a/t2")).stat("x") is None
    assert MemoryStore(Address.parse(f"memory://{name}2/a/t")).stat("x") is None


def test_a_store_without_an_address_keeps_its_files_to_itself() -> None:
    MemoryStore().put("x", b"1")
    assert MemoryStore().stat("x") is None


def test_files_carry_the_time_of_the_store_s_clock() -> None:
    store = MemoryStore(now_ms=lambda: 1000)
    store.put("a", b"")
    store.now_ms = lambda: 2000
    store.put_if_absent("b", b"")
    store.put_if_absent("a", b"")
    assert [status.modified_ms for status in store.list_from("")] == [1000, 2000]


@pytest.mark.parametrize("root", ["memory:", "memory://", "/a", "memory://n/a/../b"])
def test_a_malformed_address_is_refused(root: str) -> None:
    with pytest.raises(InvalidRequestError):
        MemoryStore(Address.parse(root))
