"""An advanced snapshot equals a newly opened one, and reads only the new commits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.table.read import Snapshot
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import (
    Action,
    add,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import LOG, TableBuilder

VECTOR = deletion_vector(cardinality=12)


def begun(store: Any = None) -> TableBuilder:
    table = TableBuilder(store)
    supported = features("deletionVectors", writer_only=["domainMetadata"])
    table.commit([supported, metadata(), add("a", size=7), add("b", size=9)])
    table.commit([remove("a"), domain("d", "{}"), txn("app", 1)])
    table.checkpoint()
    table.commit([remove("b"), add("b", size=9, dv=VECTOR)])
    return table


def remembering(table: TableBuilder) -> Snapshot:
    snapshot = table.open().snapshot()
    snapshot.remember_files()
    return snapshot


def state(snapshot: Snapshot) -> tuple[Any, ...]:
    files = snapshot.live_files().sort_by("path").to_pylist()
    return (
        *(snapshot.version, snapshot.timestamp_ms, snapshot.protocol, snapshot.metadata),
        *(
            snapshot.txns,
            snapshot.domain_metadata,
            snapshot.log.state,
            snapshot.log.segment.version,
        ),
        *(snapshot.counts, files, snapshot.tombstones().sort_by("path").to_pylist()),
    )


_STEPS: list[list[Action]] = [
    [add("c", size=3), commit_info()],
    [remove("c"), txn("app", 2)],
    [remove("b", dv=VECTOR), domain("d", removed=True)],
    [add("a", size=8), add("b", size=9)],
    [add("b", size=10)],
    [remove("b"), add("b", size=9, dv=VECTOR)],
    [remove("nobody"), add("e", size=0)],
    [metadata(configuration={"x": "y"}), domain("e", "{}")],
]


@given(st.lists(st.sampled_from(_STEPS), max_size=6), st.integers(1, 3))
@settings(max_examples=30)
def test_a_snapshot_follows_any_commits(commits: list[list[Action]], at_once: int) -> None:
    table = begun()
    snapshot = remembering(table)
    for number, actions in enumerate(commits, 1):
        table.commit(actions)
        if number % at_once == 0:
            snapshot = table.open().forward(snapshot)
    followed = table.open().forward(snapshot)
    assert state(followed) == state(table.open().snapshot())
    # The totals come from the index, and not from a pass over the files.
    assert followed.log.index is not None and followed.log.index.counts == followed.counts


def test_requests_are_one_listing_and_the_new_commits() -> None:
    store = CountingStore()
    table = begun(store)
    snapshot = remembering(table)
    store.requests.clear()
    assert table.open().forward(snapshot) is snapshot
    assert len(store.requests) == 1
    for number in range(3):
        table.commit([add(f"n{number}")])
    store.requests.clear()
    assert table.open().forward(snapshot).counts.num_files == 4
    assert [request.split()[0] for request in store.requests] == ["list", "read", "read", "read"]


def checkpointed(table: TableBuilder) -> None:
    table.commit([add("c")])
    table.checkpoint()


def compacted(table: TableBuilder) -> None:
    table.commit([add("c")])
    table.compaction(2, 3)


def replaced(table: TableBuilder) -> None:
    table.write(f"{2:020}.json", table.read(f"{2:020}.json") + b"\n", at_ms=5)


def cleaned(table: TableBuilder) -> None:
    table.commit([add("c")])
    table.checkpoint()
    table.drop(*(f"{version:020}.json" for version in range(3)))


@pytest.mark.parametrize("change", [checkpointed, compacted, replaced, cleaned])
def test_another_log_is_opened_from_scratch(change: Any) -> None:
    table = begun()
    snapshot = remembering(table)
    change(table)
    followed = table.open().forward(snapshot)
    assert followed.log.segment == table.open().snapshot().log.segment
    assert (
        followed.log.segment.checkpoint != snapshot.log.segment.checkpoint
        or change is not checkpointed
    )
    assert state(followed) == state(table.open().snapshot())
    assert followed.log.index is not None


def test_a_gap_is_an_error_as_when_opening() -> None:
    table = begun()
    snapshot = table.open().snapshot()
    table.commit([add("c")])
    table.commit([add("d")])
    table.drop(f"{3:020}.json")
    with pytest.raises(Exception, match="commit 3 is missing"):
        table.open().forward(snapshot)
    assert table.store.stat(f"{LOG}/{4:020}.json")
