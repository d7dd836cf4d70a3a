"""Reads files of the log in order, in the calling thread if that is faster, otherwise in
advance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from delta_maintenance.errors import StorageError
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read.log_file import LogEntry, read_ahead, read_listed, read_text
from delta_maintenance.table.read.segment import list_log

SMALL, LARGE = b"{}\n", b"{}\n" * 100_000


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def commits(store: MemoryStore, *texts: bytes) -> list[LogEntry]:
    for version, text in enumerate(texts):
        store.put(f"_delta_log/{commit_name(version)}", text)
    return list(list_log(store).commits.values())


def readers(
    store: MemoryStore, entries: list[LogEntry], wait: Callable[[LogEntry], float]
) -> list[bool]:
    """Returns for each file whether the calling thread read it."""

    def read(entry: LogEntry) -> tuple[bytes, threading.Thread]:
        time.sleep(wait(entry))
        return store.read(entry.path), threading.current_thread()

    found = list(read_ahead(store, entries, read))
    assert [entry for entry, _ in found] == entries[::-1]
    assert [len(data) for _, (data, _) in found] == [entry.status.size for entry in entries[::-1]]
    return [thread is threading.current_thread() for _, (_, thread) in found]


@pytest.mark.parametrize("texts", [(), (SMALL,), (SMALL,) * 300, (LARGE,) * 5])
def test_a_remote_store_is_read_by_threads(store: MemoryStore, texts: tuple[bytes, ...]) -> None:
    assert not any(readers(store, commits(store, *texts), lambda entry: 0))


def test_small_local_files_are_read_by_the_caller(store: MemoryStore) -> None:
    store.is_near = True
    read_by_caller = readers(store, commits(store, *[SMALL] * 300), lambda entry: 0)
    # On a busy machine some of them may have had to wait for a processor.
    assert all(read_by_caller[:8])


def test_from_a_large_file_on_threads_read(store: MemoryStore) -> None:
    store.is_near = True
    entries = commits(store, *[SMALL] * 3, LARGE, *[SMALL] * 2)
    assert readers(store, entries, lambda entry: 0) == [True, True, False, False, False, False]


def test_once_some_files_kept_the_caller_waiting_threads_read(store: MemoryStore) -> None:
    store.is_near = True
    read_by_caller = readers(store, commits(store, *[SMALL] * 40), lambda entry: 0.05)
    assert read_by_caller == [True] * 8 + [False] * 32


@pytest.mark.parametrize("near", [False, True])
def test_a_missing_file_is_named(store: MemoryStore, near: bool) -> None:
    store.is_near = near
    entries = commits(store, *[SMALL] * 4)

    def read(entry: LogEntry) -> bytes:
        if entry.file.version == 1:
            raise FileNotFoundError("no name")
        return store.read(entry.path)

    with pytest.raises(FileNotFoundError) as caught:
        list(read_ahead(store, entries, read))
    assert caught.value.filename == f"_delta_log/{commit_name(1)}"


class ShortStore(MemoryStore):
    """Returns fewer bytes than it lists, some times."""

    times = 0

    def read(self, path: str) -> bytes:
        return self._cut(super().read(path))

    def read_head(self, path: str, size: int) -> bytes:
        return self._cut(super().read(path)[:size], left=0)

    def _cut(self, data: bytes, left: int = 4) -> bytes:
        self.times -= 1
        return data[:left] if self.times >= 0 else data


def test_a_file_of_which_too_few_bytes_arrive_is_read_again_and_then_an_error() -> None:
    """A shorter text could be a sound commit without some of its actions."""
    store = ShortStore()
    [entry] = commits(store, b"{}\n{}\n{}\n")
    for times, result in ((0, 9), (1, 9), (2, None)):
        for read in (
            lambda: read_listed(store, entry.status),
            lambda: read_text(store, entry.path),
        ):
            store.times = times
            if result is not None:
                assert len(read()) == result
                continue
            with pytest.raises(StorageError, match="bytes of a file of 9, twice"):
                read()
    store.put("empty", b"")
    assert read_text(store, "empty") == b""
