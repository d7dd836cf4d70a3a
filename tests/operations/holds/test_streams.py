"""The positions of streams and of consumers, from what they have written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.holds.streams import StreamPosition, read_last_read, read_stream
from delta_maintenance.storage import MemoryStore

ID = "3bffe7c2-e334-4419-a150-f6f47b565c78"
OTHER = "7c1ab0ad-0d3f-44bf-9c0c-3b0a9e7c1c11"
NOTHING = "-"
KAFKA = json.dumps({"topic": {"0": 17}})


def offset(version: int, *, initial: bool = False, table: str = ID, **other: Any) -> str:
    """The offset of a source at the begin of a version, or in the snapshot of one."""
    values = {
        "sourceVersion": 1,
        "reservoirId": table,
        "reservoirVersion": version,
        "index": 3 if initial else -1,
        "isStartingVersion": initial,
    }
    return json.dumps({**values, **other})


def shared(version: int) -> str:
    """The offset of a source of Delta Sharing."""
    values = {"tableId": ID, "tableVersion": version, "index": -1, "isStartingVersion": False}
    return json.dumps({"sourceVersion": 1, **values})


def batch(*sources: str, form: str = "v1") -> bytes:
    return "\n".join([form, '{"batchWatermarkMs":0}', *sources]).encode()


def folder(
    offsets: dict[int, Sequence[str] | bytes], commits: Sequence[int] = (), *, begun: bool = True
) -> MemoryStore:
    """A checkpoint folder. All files are from the millisecond 1000, the newest commit from 2000."""
    store = MemoryStore()
    store.now_ms = lambda: 1000
    if begun:
        store.put("metadata", b'{"id":"1"}')
    for number, sources in offsets.items():
        data = sources if isinstance(sources, bytes) else batch(*sources)
        store.put(f"offsets/{number}", data)
        store.put(f"offsets/.{number}.crc", b"")
    for number in commits:
        store.now_ms = lambda: 2000
        store.put(f"commits/{number}", b'v1\n{"nextBatchWatermarkMs":0}')
    return store


@pytest.mark.parametrize(
    ("offsets", "commits", "needs", "unread"),
    [
        pytest.param({4: [offset(7)], 5: [offset(9)]}, [4, 5], 6, 9, id="all batches committed"),
        pytest.param({4: [offset(7)], 5: [offset(9)]}, [4], 6, 7, id="last batch not committed"),
        pytest.param({0: [offset(9)]}, [0], None, 9, id="first batch from a version unknown here"),
        pytest.param({0: [offset(9)]}, [], None, 0, id="first batch not committed"),
        pytest.param(
            {0: [offset(9)], 1: [offset(12)]}, [], None, 0, id="two batches and none committed"
        ),
        pytest.param({0: [offset(3, initial=True)]}, [], 3, 3, id="first batch of a snapshot"),
        pytest.param(
            {8: [offset(3, initial=True)], 9: [offset(4)]}, [8, 9], 3, 4, id="snapshot just read"
        ),
        pytest.param({9: [offset(0)], 10: [offset(1)]}, [9, 10], 0, 1, id="ten is newer than nine"),
        pytest.param({2: [offset(5)], 4: [offset(7)], 6: [offset(9)]}, [2, 4], 6, 7, id="gaps"),
        pytest.param({5: [offset(9)]}, [], None, 0, id="only the newest offsets are left"),
        pytest.param(
            {4: [offset(7)], 5: [offset(9)], 6: [offset(11)]}, [4], 6, 7, id="two not committed"
        ),
        pytest.param({4: [shared(7)], 5: [shared(9)]}, [4, 5], 6, 9, id="Delta Sharing"),
        pytest.param(
            {4: [offset(7, sourceVersion=3, index=-20)], 5: [offset(9)]}, [4], 6, 7, id="version 3"
        ),
        pytest.param(
            {4: [KAFKA, offset(7), offset(2, table=OTHER)], 5: [KAFKA, offset(9), NOTHING]},
            [4],
            6,
            7,
            id="among other sources",
        ),
        pytest.param(
            {4: [offset(7), offset(5)], 5: [offset(9), offset(8)]}, [4, 5], 4, 8, id="two sources"
        ),
        pytest.param({4: [NOTHING], 5: [offset(9)]}, [4, 5], None, 9, id="a late source"),
        pytest.param({4: [offset(9)], 5: [offset(3)]}, [4, 5], None, 3, id="back, committed"),
        pytest.param({4: [offset(9)], 5: [offset(3)]}, [4], None, 9, id="back, not committed"),
        pytest.param(
            {4: [offset(9)], 5: [offset(9, initial=True)]}, [4, 5], None, 9, id="back in a version"
        ),
        pytest.param(
            {4: [offset(7), offset(5)], 5: [offset(9), offset(4)]},
            [4, 5],
            None,
            4,
            id="one of two sources goes back",
        ),
        pytest.param(
            {4: [offset(12, table=OTHER)], 5: [offset(9)]}, [4, 5], None, 9, id="another source"
        ),
        pytest.param(
            {4: batch(f"0:{offset(7)}", "b:-", form="v2"), 5: batch(f"0:{offset(9)}", form="v2")},
            [4, 5],
            6,
            9,
            id="named sources",
        ),
    ],
)
def test_the_position_of_a_stream(
    offsets: dict[int, Sequence[str] | bytes],
    commits: Sequence[int],
    needs: int | None,
    unread: int,
) -> None:
    found = read_stream(folder(offsets, commits), ID)
    assert isinstance(found.position, StreamPosition)
    assert (found.position.needs, found.position.unread) == (needs, unread)
    assert found.position.changed_ms == (2000 if commits else 1000)


def test_a_stream_of_other_tables_and_one_that_has_read_nothing() -> None:
    state = read_stream(folder({0: [offset(3, table=OTHER), KAFKA]}, [0]), ID)
    assert (state.position, state.is_of_others) == (None, True)
    for offsets in ({}, {0: [NOTHING, offset(3, table=OTHER)]}):
        state = read_stream(folder(offsets), ID)
        assert (state.position, state.is_of_others) == (None, False)


@pytest.mark.parametrize(
    ("store", "problem", "file"),
    [
        (folder({}, begun=False), "no checkpoint of a stream", None),
        (folder({}, [3]), "committed batches and no offsets", "offsets"),
        (folder({4: [offset(7)], 5: [offset(9)]}), "recorded as committed", "commits"),
        (folder({5: [offset(9)]}, [4]), "offsets of this batch are missing", "offsets/4"),
        (folder({5: [offset(9)]}, [5]), "offsets of this batch are missing", "offsets/4"),
        *(
            (folder({4: [offset(7)], 5: data}, [4]), problem, "offsets/5")
            for data, problem in [
                (b"", "incomplete"),
                (b"v1\n{}", "names no source"),
                (b"v3\n{}\n-", "format 'v3' is not known"),
                (b"\xff\xfe", "not text"),
                (batch(offset(9)[:-9]), "line 3 is not JSON"),
                (batch("[" * 100_000), "line 3 is not JSON"),
                (batch(offset(9)[:-1] + ', "reservoirVersion": 12}'), "with unique keys"),
                (batch("-", offset(9, sourceVersion=4)), "line 4 has a format of offsets"),
                (batch(offset(-1)), "no version"),
                (batch(json.dumps({"sourceVersion": 1, "reservoirId": ID})), "not the offset"),
                (
                    batch(
                        json.dumps(
                            {"sourceVersion": 1, "reservoirId": ID, "isStartingVersion": False}
                        )
                    ),
                    "no version",
                ),
                (batch(offset(9, reservoirVersion="9")), "no version"),
                (batch(offset(9, reservoirVersion=True)), "no version"),
                (batch(offset(9, isStartingVersion=None)), "not the offset of a Delta table"),
                (batch(offset(9), form="v2"), "not JSON"),
                (batch("-", form="v2"), "names no source"),
                (b"v1\n" + b" " * (17 << 20), "more than"),
            ]
        ),
    ],
)
def test_a_damaged_checkpoint_folder_is_refused(
    store: MemoryStore, problem: str, file: str | None
) -> None:
    with pytest.raises(RefusedError, match=problem) as caught:
        read_stream(store, ID)
    assert caught.value.file == file


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b"41\n", 41),
        (b'{"version": 41, "at": "2026-11-27"}', 41),
        (b'{"version": 41, "table_id": "%s"}' % ID.encode(), 41),
        (b"", None),
        (b"-1", None),
        (b"true", None),
        (b'"41"', None),
        (b'{"version": null}', None),
        (b'{"version": 41, "version": 9}', None),
        (b"1" * (1 << 17), None),
        (b"41" + b" " * (1 << 17), None),
        (b"[" * 60_000, None),
        (b"\xff", None),
    ],
)
def test_the_file_of_a_consumer(content: bytes, version: int | None) -> None:
    store = MemoryStore()
    store.now_ms = lambda: 1000
    store.put("position", content)
    if version is None:
        with pytest.raises(RefusedError, match="does not contain a version"):
            read_last_read(store, "position", ID, requires_id=False)
        return
    found = read_last_read(store, "position", ID, requires_id=False).position
    assert found == StreamPosition(needs=version, unread=version + 1, changed_ms=1000)
    if b"table_id" in content:
        assert read_last_read(store, "position", OTHER, requires_id=True).is_of_others
    else:
        with pytest.raises(RefusedError, match="table_id"):
            read_last_read(store, "position", ID, requires_id=True)
