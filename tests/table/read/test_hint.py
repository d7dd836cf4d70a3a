"""`_last_checkpoint` is a hint: whatever it says, the answer is that of a full listing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import StorageError
from delta_maintenance.protocol.delta_log.last_checkpoint import render_hint
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import FileStatus
from tests.properties.model import replay, state_of
from tests.support.tables.actions import add, features, metadata, remove
from tests.support.tables.table_builder import TableBuilder

NEWEST = 6


class ListingLog(MemoryStore):
    """Remembers where listings of the log began, and may refuse to read the hint."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[str] = []
        self.refuse_hint = False

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        self.starts.append(start)
        return super().list_from(directory, start)

    def read(self, path: str) -> bytes:
        if self.refuse_hint and path.endswith("_last_checkpoint"):
            raise StorageError("the store stutters")
        return super().read(path)


def checkpointed() -> TableBuilder:
    """Versions 0 to 6, a checkpoint at 2 and at 4."""
    table = TableBuilder(ListingLog())
    table.commit([features("v2Checkpoint"), metadata(), add("0")])
    for version in range(1, NEWEST + 1):
        table.commit([remove(str(version - 1)), add(str(version))])
    table.checkpoint(2)
    table.checkpoint(4)
    return table


def check(table: TableBuilder) -> None:
    for version in range(NEWEST + 1):
        snapshot = table.open().snapshot(version=version)
        commits = [table.commits[number] for number in range(version + 1)]
        assert state_of(snapshot) == replay(commits)
        assert snapshot.warnings == ()
    assert table.open().snapshot().version == NEWEST
    assert table.open().snapshot().log.segment.base_version == 4


def listings(table: TableBuilder) -> list[str]:
    assert isinstance(table.store, ListingLog)
    table.store.starts.clear()
    table.open().snapshot()
    return table.store.starts


@pytest.mark.conformance("LAST-01", "LAST-02")
def test_a_sound_hint_spares_the_listing_of_what_is_older() -> None:
    table = checkpointed()
    assert listings(table) == [f"{0:020d}"]
    table.hint(4)
    check(table)
    assert listings(table) == [f"{4:020d}"]


@pytest.mark.conformance("LAST-02")
@pytest.mark.parametrize("version", [0, 1, 2, 3, 5, 6, 7, 2**63 - 1])
def test_a_hint_that_is_stale_or_ahead_or_points_nowhere_changes_nothing(version: int) -> None:
    table = checkpointed()
    table.hint(version)
    check(table)


@pytest.mark.conformance("LAST-02", "CKPT-16")
def test_a_hint_at_an_incomplete_or_damaged_checkpoint_changes_nothing() -> None:
    table = checkpointed()
    table.drop(table.checkpoint(5, parts=2)[0])
    table.hint({"version": 5, "size": 3, "parts": 2})
    check(table)

    table = checkpointed()
    name = table.checkpoint(5)[0]
    table.hint(5)
    for damage in (table.zero, lambda name: table.truncate(name, 12), table.drop):
        damage(name)
        snapshot = table.open().snapshot()
        assert state_of(snapshot) == replay(list(table.commits.values()))
        assert snapshot.log.segment.base_version == 4


@pytest.mark.conformance("LAST-02")
def test_the_hinted_checkpoint_is_not_preferred_to_a_newer_one() -> None:
    table = checkpointed()
    table.hint(2)
    assert table.open().snapshot().log.segment.base_version == 4


@pytest.mark.conformance("LAST-01", "LAST-04", "LAST-07")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"garbage",
        b"\xff\xfe",
        b"[4]",
        b"4",
        b"null",
        b'{"version":4,"version":5}',
        b'{"version":"4"}',
        b'{"version":4.5}',
        b'{"version":-1}',
        b'{"version":true}',
        b'{"version":99999999999999999999}',
        b'{"size":1}',
        b'{"version":NaN}',
        b'{"version":4,"size":1,"checksum":"00000000000000000000000000000000"}',
        b'{"version":4,"parts":0}',
        b'{"version":4,"v2Checkpoint":{"path":"../x"}}',
        b"[" * 100_000,
    ],
    ids=lambda content: content[:40].decode("latin-1"),
)
def test_a_broken_hint_is_ignored(content: bytes) -> None:
    table = checkpointed()
    table.hint(content)
    check(table)
    assert listings(table) == [f"{0:020d}"]


@pytest.mark.conformance("LAST-01")
def test_an_unreadable_hint_is_ignored() -> None:
    table = checkpointed()
    table.hint(4)
    assert isinstance(table.store, ListingLog)
    table.store.refuse_hint = True
    check(table)


@pytest.mark.conformance("LAST-03")
@given(
    hint=st.fixed_dictionaries(
        {"version": st.integers(0, 8)},
        optional={
            name: st.none() | st.integers(-1, 9) | st.text() | st.lists(st.integers())
            for name in ("size", "parts", "sizeInBytes", "numOfAddFiles", "size_in_bytes", "tags")
        }
        | {"checkpointSchema": st.dictionaries(st.text(), st.text()), "v2Checkpoint": st.text()},
    )
)
def test_no_field_of_the_hint_changes_the_answer(hint: dict[str, Any]) -> None:
    table = checkpointed()
    table.hint(json.dumps(hint))
    assert state_of(table.open().snapshot()) == replay(list(table.commits.values()))


@pytest.mark.conformance("LAST-04")
def test_one_changed_byte_of_a_hint_with_a_checksum_costs_a_listing_at_most() -> None:
    table = checkpointed()
    sound = render_hint(version=4, size=3, size_in_bytes=99, num_of_add_files=1)
    table.hint(sound)
    assert listings(table) == [f"{4:020d}"]
    for at in range(0, len(sound), 3):
        table.hint(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        assert state_of(table.open().snapshot()) == replay(list(table.commits.values()))


@pytest.mark.conformance("LAST-01")
def test_the_newest_version_is_found_by_one_listing_from_a_known_version_on() -> None:
    table = checkpointed()
    assert isinstance(table.store, ListingLog)
    for known in range(NEWEST + 1):
        table.store.starts.clear()
        assert table.open().latest_version(known=known) == NEWEST
