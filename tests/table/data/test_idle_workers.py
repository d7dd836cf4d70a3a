"""Idle workers help with a bin, and change nothing but the thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import CorruptTableError, StorageError
from delta_maintenance.protocol.data_files.ordered_digest import ColumnDigest
from delta_maintenance.protocol.data_files.row_digest import RowDigest
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data import data_file_writer, read_back
from delta_maintenance.table.data.data_file_reader import DataFileReader, FileRows, SourceFile
from delta_maintenance.table.data.data_file_writer import DataFileWriter
from delta_maintenance.table.data.parquet_input import ParquetInput
from tests.table.data.test_rewrite_proof import free, run

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("deletes", [True, False], ids=["sums", "in-order"])
def test_an_idle_worker_changes_nothing_but_the_thread(deletes: bool, monkeypatch: Patch) -> None:
    threads: set[int] = set()
    users: dict[int, set[int]] = {}
    encode, add = DataFileWriter._encode, ColumnDigest.add
    hashes = RowDigest.hashes

    def encoding(self: DataFileWriter, *arguments: Any) -> None:
        threads.add(threading.get_ident())
        encode(self, *arguments)

    def using(digest: Any) -> None:
        threads.add(threading.get_ident())
        users.setdefault(id(digest), set()).add(threading.get_ident())
        kept.append(digest)

    def adding(self: ColumnDigest, values: pa.Array) -> None:
        using(self)
        add(self, values)

    def hashing(self: RowDigest, *arguments: Any) -> Any:
        using(self)
        return hashes(self, *arguments)

    kept: list[Any] = []
    monkeypatch.setattr(DataFileWriter, "_encode", encoding)
    monkeypatch.setattr(ColumnDigest, "add", adding)
    monkeypatch.setattr(RowDigest, "hashes", hashing)
    alone = run(store=(one := MemoryStore(now_ms=lambda: 0)), deletes=deletes)
    assert threads == {threading.get_ident()}
    idle_workers = free(1)
    other = MemoryStore(now_ms=lambda: 0)
    overlapped = run(store=other, idle_workers=idle_workers, deletes=deletes)
    # One thread encodes, and one reads back.
    assert len(threads - {threading.get_ident()}) in (1, 2)
    # A digest is not thread-safe.
    assert all(len(each) == 1 for each in users.values())
    assert overlapped == alone
    assert one.read(alone.outputs[0].name) == other.read(overlapped.outputs[0].name)
    assert idle_workers.take() and not idle_workers.take()


def test_two_sources_are_decoded_at_the_same_time(monkeypatch: Patch) -> None:
    """Each waits for the other, so one thread alone would not decode them."""
    monkeypatch.setattr(data_file_writer, "_SAMPLE", 5)
    alone = run(deletes=False, group_rows=60)
    read, meet = DataFileReader.read, threading.Barrier(2, timeout=30)

    def reading(self: DataFileReader, file: SourceFile, **options: Any) -> Iterator[FileRows]:
        if file.path != "f0":
            meet.wait()
        yield from read(self, file, **options)

    monkeypatch.setattr(DataFileReader, "read", reading)
    assert run(deletes=False, group_rows=60, idle_workers=free(2)) == alone


def test_an_error_of_a_source_in_the_other_thread_names_the_source(monkeypatch: Patch) -> None:
    monkeypatch.setattr(data_file_writer, "_SAMPLE", 5)
    read, in_threads = DataFileReader.read, set[bool]()

    def reading(self: DataFileReader, file: SourceFile, **options: Any) -> Iterator[FileRows]:
        is_other = threading.current_thread() is not threading.main_thread()
        in_threads.add(is_other)
        while file.path == "f1" and not is_other and True not in in_threads:
            time.sleep(0.001)
        if file.path == "f2":
            raise CorruptTableError("a page is damaged", file=file.path)
        yield from read(self, file, **options)

    monkeypatch.setattr(DataFileReader, "read", reading)
    done = run(deletes=False, group_rows=60, idle_workers=(idle_workers := free(2)))
    assert [refusal.source.path for refusal in done.refused] == ["f2"]
    assert done.refused[0].damaged and done.sums.rows == 40
    assert in_threads == {True, False}
    assert [idle_workers.take() for _ in range(3)] == [True, True, False]


def test_an_error_in_the_thread_of_an_idle_worker_ends_the_bin(monkeypatch: Patch) -> None:
    def failing(self: DataFileWriter, *arguments: Any) -> None:
        raise StorageError("the disk is full")

    store, idle_workers = MemoryStore(), free(1)
    monkeypatch.setattr(DataFileWriter, "_encode", failing)
    with pytest.raises(StorageError, match="full"):
        run(store=store, idle_workers=idle_workers)
    assert idle_workers.take()
    paths = [path for batch in store.list_tree() for path in batch["path"].to_pylist()]
    assert sorted(paths) == ["f0", "f1", "f2"]


@pytest.mark.parametrize("step", ["encoding", "reading back"])
def test_a_bin_that_fails_waits_for_its_other_thread(step: str, monkeypatch: Patch) -> None:
    """Otherwise a thread would still write a file, or read one, that is gone by then."""
    ends: list[str] = []
    began = threading.Event()

    def slow(*_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            failing()
        began.set()
        time.sleep(0.1)
        ends.append("other thread")

    def failing() -> None:
        assert began.wait(120)
        raise StorageError("the store is away")

    write = DataFileWriter.write

    def writing(self: DataFileWriter, batch: pa.RecordBatch) -> None:
        write(self, batch)
        if self._encoding is not None:
            failing()

    if step == "encoding":
        monkeypatch.setattr(DataFileWriter, "_encode", slow)
        monkeypatch.setattr(DataFileWriter, "write", writing)
    else:
        monkeypatch.setattr(read_back, "_add_groups", slow)
    with pytest.raises(StorageError, match="away"):
        run(idle_workers=free(1))
    assert ends == ["other thread"]


@pytest.mark.parametrize(
    ("proof", "idle", "limit", "whole", "inputs"),
    [
        ("rows", 0, 8 << 20, 1, 1),
        ("rows", 1, 8 << 20, 1, 2),
        ("rows", 0, 100, 0, 1),
        ("rows", 1, 100, 0, 2),
        ("counts", 0, 8 << 20, 0, 1),
    ],
)
def test_a_small_new_file_is_read_back_in_one_request(
    proof: str, idle: int, limit: int, whole: int, inputs: int, monkeypatch: Patch
) -> None:
    opened: list[Any] = []
    read: list[str] = []

    class CountingStore(MemoryStore):
        def read_head(self, path: str, size: int) -> bytes:
            read.append(path)
            return super().read_head(path, size)

    class CountingInput(ParquetInput):
        def __init__(self, source: Any, **options: Any) -> None:
            opened.append(source)
            super().__init__(source, **options)

    monkeypatch.setattr(read_back, "ParquetInput", CountingInput)
    monkeypatch.setattr(read_back, "WHOLE_FILE", limit)
    done = run(store=CountingStore(), deletes=False, proof=proof, idle_workers=free(idle))
    assert read.count(done.outputs[0].name) == whole and len(opened) == inputs
    assert all(isinstance(source, bytes) == bool(whole) for source in opened)
    assert done.sums.rows == 60
