"""Each kind of files in the state folder has names of its own, and a damaged file is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.clock import now
from delta_maintenance.errors import StorageError
from delta_maintenance.ledger import recording
from delta_maintenance.operations.holds.references import References
from delta_maintenance.policies import catalogs, clones, leases, new_failures, state_files
from delta_maintenance.policies.state_files import StateFile
from delta_maintenance.storage import MemoryStore

KINDS: dict[str, tuple[StateFile[Any], Any]] = {
    "lease": (leases._LEASE, leases.Lease(name="orders", holder="first", until=now(), nonce="1")),
    "listing": (catalogs._LISTING, catalogs.Remembered(failed=("main.sales",))),
    "patterns": (catalogs._PATTERNS, frozenset({"main.**"})),
    "references": (clones._MEMORY, {"s3://lake/orders": References(read_at=now(), seen_at=now())}),
    "reported": (new_failures._REPORTED, new_failures.ReportedFailures()),
    "delivery": (
        recording._DELIVERY,
        recording._Document(run_id="1", since_version=None, rows="AAAA"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@given(damage=st.binary(max_size=30), at=st.integers(min_value=0))
def test_a_damaged_file_counts_as_none_and_never_as_an_error(
    kind: str, damage: bytes, at: int
) -> None:
    file, value = KINDS[kind]
    store = MemoryStore()
    assert file.read(store, "it") is None
    file.write(store, "it", value)
    assert file.read(store, "it") == value
    data = store.read("it")
    at %= len(data)
    store.put("it", data[:at] + damage + data[at + len(damage) :])
    restored = file.read(store, "it")
    assert restored is None or isinstance(restored, type(value))
    store.put("it", data[:at])
    assert file.read(store, "it") is None
    store.put("it", b"[" * 100_000)
    assert file.read(store, "it") is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_cannot_be_read_is_no_damaged_file(kind: str) -> None:
    class Down(MemoryStore):
        def read_head(self, path: str, size: int) -> bytes:
            raise StorageError("the disk is gone", file=path)

    with pytest.raises(StorageError):
        KINDS[kind][0].read(Down(), "it")


@given(st.text(), st.text())
def test_no_name_is_one_of_two_kinds(first: str, second: str) -> None:
    names = {
        state_files.table_file(first),
        state_files.pattern_file(second),
        state_files.listing_file(first),
        state_files.lease_file(second),
        state_files.REPORTED_FILE,
        state_files.REFERENCES_FILE,
        state_files.PATTERNS_FILE,
        state_files.UNREACHABLE_FILE,
    }
    assert len(names) == 8
    assert sum(name.endswith(state_files.ENTRY_SUFFIX) for name in names) == 2
