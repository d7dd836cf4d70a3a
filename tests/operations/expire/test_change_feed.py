"""The change data that `expire` writes: exactly the expired rows, for every reader of changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from delta_maintenance.operations.expire import changes
from delta_maintenance.protocol.actions import DeletionVectorDescriptor
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put
from tests.operations.expire.test_operation import (
    FEED,
    KEPT,
    Aged,
    append_old,
    compact,
    delete_row,
    deleted_in_feed,
    numbers,
    run,
)
from tests.support.rewrites.table_rows import actions_of, latest, live_adds
from tests.support.suite.play import examples


class LateStore(MemoryStore):
    """Lets others act directly before a commit of ours with a kind of action."""

    def __init__(self) -> None:
        super().__init__()
        self.action = b""
        self.meanwhile: Callable[[], object] | None = None

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if b'{"%s":' % self.action in data and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().put_if_absent(path, data)


@pytest.mark.conformance("CDC-05")
@pytest.mark.parametrize("race", [None, append_old, delete_row, compact])
def test_the_change_feed_has_exactly_the_expired_rows(race: Callable[[Aged], None] | None) -> None:
    store = LateStore()
    aged = Aged(store, **FEED)
    partly = aged.append(60, 45, 5, stats=None)
    aged.table.delete(partly, [0])
    all_old = aged.append(70, stats=None)

    def meanwhile() -> None:
        aged.table.builder.commits.setdefault(latest(store), [])
        aged.table.continue_row_ids()
        assert race is not None
        race(aged)

    store.action, store.meanwhile = b"cdc", meanwhile if race is not None else None
    version = latest(store)
    result = run(store, mixed="rewrite")
    assert result.problem is None and store.meanwhile is None
    # The files that only have old rows go without change data files.
    assert deleted_in_feed(store) == ({6, 12} if race is compact else {2, 5, 6, 12})
    assert all_old not in live_adds(store)
    ours = [actions_of(store, each) for each in range(version + 1, latest(store) + 1)]
    for actions in ours:
        metrics = actions[0].get("commitInfo", {}).get("operationMetrics", {})
        count = sum("cdc" in action for action in actions)
        assert int(metrics.get("numAddedChangeFiles", 0)) == count


@pytest.mark.conformance("CDC-05")
@pytest.mark.parametrize("race", [None, "append", "delete"])
def test_long_changes_of_deletion_vectors_get_change_data_files(
    monkeypatch: pytest.MonkeyPatch, race: str | None
) -> None:
    """Here, every change of a file that has a vector counts as long."""
    monkeypatch.setattr(changes, "_LONGEST_TEXT", 0)
    store = LateStore()
    aged = Aged(store, **FEED)
    marked = aged.append(60, 45, 5, 4, stats=None)
    aged.table.delete(marked, [0])
    all_old = aged.append(70, 71, stats=None)
    aged.table.delete(all_old, [0])

    def meanwhile() -> None:
        aged.table.builder.commits.setdefault(latest(store), [])
        aged.table.continue_row_ids()
        if race == "append":
            aged.append(90, 80)
        else:
            aged.table.delete(marked, [0, 2])

    store.action, store.meanwhile = b"cdc", meanwhile if race is not None else None
    version = latest(store)
    result = run(store, mixed="deletion-vectors")
    assert result.problem is None and store.meanwhile is None
    assert numbers(store) & {11, 12, 13, 14, 15, 16} == ({14} if race == "delete" else {13, 14})
    # Readers of changes take the other files from their vectors, or from their removal.
    assert deleted_in_feed(store) == {12}
    for number in range(version + 1, latest(store) + 1):
        actions = actions_of(store, number)
        removes = {each["remove"]["path"] for each in actions if "remove" in each}
        assert removes <= {marked} or not any("cdc" in each for each in actions)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 70_000), st.integers(1, 9))))
@settings(max_examples=examples(50))
def test_the_text_of_a_change_is_never_longer_than_assumed(
    parts: list[tuple[int, int, int]],
) -> None:
    rows = BitMap64()
    for first, count, step in parts:
        rows |= BitMap64(range(first << 31, (first << 31) + count * step, step))
    text = DeletionVectorDescriptor.inline(rows).path_or_inline_dv
    assert changes.is_too_long_for_spark(rows) or len(text) <= 65_535
    assert not changes.is_too_long_for_spark(BitMap64(range(0, 20_000)))


def test_a_feed_that_is_switched_on_meanwhile_is_not_falsified() -> None:
    store = LateStore()
    aged = Aged(store)
    [before] = [each["metaData"] for each in actions_of(store, 0) if "metaData" in each]
    after = {**before, "configuration": {**before["configuration"], **FEED}}

    def switched() -> None:
        aged.table.builder.commits.setdefault(latest(store), [])
        aged.table.builder.commit([{"metaData": after}])

    store.action, store.meanwhile = b"add", switched
    result = run(store, mixed="rewrite")
    assert result.status == "partly" and "change data feed" in (result.problem or "")
    assert deleted_in_feed(store) == set() and KEPT["rewrite"] < numbers(store)
    assert run(store, mixed="rewrite", seed=8).problem is None
    assert numbers(store) == KEPT["rewrite"] and deleted_in_feed(store) == {2, 5, 6}
