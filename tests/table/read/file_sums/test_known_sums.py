"""Sums of files that follow commits: those of a replay, without one where commits are usual."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.table.read import Snapshot, file_sums, summary
from delta_maintenance.table.read.file_sums import Instants, SumMemory, sum_files
from delta_maintenance.table.read.segment import list_entries
from tests.support.stores.counting_store import CountingStore
from tests.support.suite.play import examples
from tests.support.tables.actions import Action, add, commit_info, deletion_vector, metadata, remove
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder
from tests.table.read.file_sums.test_stated_sizes import DAY_MS, INSTANTS, LATER, SMALL, begun, gone

VECTOR = deletion_vector(cardinality=3)
LATER_ON = Instants(
    now=EPOCH_MS + 27 * DAY_MS,
    expired_before=EPOCH_MS + 9 * DAY_MS + 1,
    reclaimable_before=EPOCH_MS + 20 * DAY_MS,
    reclaimed_before=EPOCH_MS + 2 * DAY_MS,
)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions that were replayed."""
    versions: list[int] = []
    replay: Any = file_sums._replay_sums

    def counted(snapshot: Snapshot, sample: Any) -> Any:
        versions.append(snapshot.version)
        return replay(snapshot, sample)

    monkeypatch.setattr(file_sums, "_replay_sums", counted)
    return versions


def looked(
    table: TableBuilder, memory: SumMemory | None, instants: Instants = INSTANTS, **options: Any
) -> Any:
    snapshot = table.open().snapshot()
    found = sum_files(snapshot, small_bytes=SMALL, instants=instants, memory=memory, **options)
    return replace(found, checksum_version=None)


@pytest.mark.parametrize("by_checksum", [False, True])
def test_sums_follow_usual_commits(
    by_checksum: bool, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "FEWEST_FILES", 1)
    table, memory = begun(), SumMemory()
    checksums = [*list_entries(table.store)] if by_checksum else []
    looked(table, memory, checksums=checksums)
    assert len(replays) == (0 if by_checksum else 1)
    replays.clear()
    for actions in LATER:
        table.commit(actions)
        for instants in (INSTANTS, LATER_ON):
            found = looked(table, memory, instants)
            assert not replays and memory.known is not None
            assert found == looked(table, None, instants)
            assert found.reclaimable_files and found.expired_tombstones
            replays.clear()


# In any order, no usual operation removes a file that is not live, or adds a file again.
_STEPS: list[list[Action]] = [
    *LATER[:2],
    [commit_info(), add("small", size=100)],
    [commit_info("DELETE"), gone("a", 8192, 3)],
    [commit_info("DELETE"), remove("c")],
    [commit_info("RESTORE"), add("e", size=9000)],
    [commit_info("DELETE"), gone("d", 3 << 30), add("d", size=3 << 30, dv=VECTOR)],
    [commit_info("OPTIMIZE"), gone("d", 3 << 30, dv=VECTOR), add("o", size=1 << 30)],
    [commit_info("VACUUM END")],
    [commit_info(), metadata(configuration={"y": "z"})],
]


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.sampled_from(_STEPS), max_size=6, unique_by=id), st.booleans())
def test_sums_are_those_of_a_replay_after_any_commits(
    steps: list[list[Action]], supports_vectors: bool
) -> None:
    table = begun(None, *(["deletionVectors"] if supports_vectors else []))
    memory = SumMemory()
    for number, actions in enumerate([[commit_info()], *steps]):
        table.commit(actions)
        instants = (INSTANTS, LATER_ON)[number % 2]
        assert looked(table, memory, instants) == looked(table, None, instants)


def test_the_same_version_is_not_read_again(replays: list[int]) -> None:
    store = CountingStore()
    table, memory = begun(store, "deletionVectors"), SumMemory()
    table.commit([commit_info("DELETE"), gone("b", 1), add("b", size=1 << 20, dv=VECTOR)])
    first = looked(table, memory)
    table.commit([commit_info("VACUUM END")])
    store.requests.clear()
    assert looked(table, memory) == first and replays == [2]
    assert not [line for line in store.requests if "_sidecars" in line]


def test_another_table_at_the_same_place_is_replayed(replays: list[int]) -> None:
    table, memory = begun(), SumMemory()
    looked(table, memory)
    table.commit([commit_info(), metadata(id="another")])
    looked(table, memory)
    assert replays == [1, 2]


def test_a_copy_of_an_earlier_state_with_other_commits_is_replayed(replays: list[int]) -> None:
    table, copy, memory = begun(), begun(), SumMemory()
    table.commit([commit_info(), add("x", size=5)])
    looked(table, memory)
    copy.commit([commit_info(), add("other", size=500), add("one more", size=700)])
    copy.commit([commit_info(), add("x", size=5)])
    assert looked(copy, memory) == looked(copy, None)
    assert replays == [2, 3, 3]


def test_a_checkpoint_with_other_totals_is_replayed(replays: list[int]) -> None:
    table, memory = begun(), SumMemory()
    looked(table, memory)
    assert memory.known is not None
    memory.known.live.files[30] += 1
    assert looked(table, memory) == looked(table, None)
    assert replays == [1, 1, 1]
