"""The memory of a scan depends on the number of files, not on the number of actions."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.table.read import checkpoint_reader, log_file, log_reader, log_view
from tests.support.tables.actions import add, features, metadata, protocol
from tests.support.tables.table_builder import TableBuilder, log_text

FILES = 1000


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[FileReplay]:
    """Every replay that a scan starts; batches are small, so that there are many."""
    made: list[FileReplay] = []

    def make() -> FileReplay:
        made.append(FileReplay())
        return made[-1]

    monkeypatch.setattr(log_view, "FileReplay", make)
    monkeypatch.setattr(log_reader, "_BATCH_BYTES", 1 << 18)
    monkeypatch.setattr(log_file, "_READ_AHEAD_BYTES", 1 << 18)
    return made


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """A pool of this test alone, which so knows the most that was held at once."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


def superseding(commits: int) -> TableBuilder:
    """The same files, added over and over."""
    table = TableBuilder()
    table.commit([protocol(), metadata()])
    data = log_text(add(f"part-{number:05d}-{'x' * 40}.parquet") for number in range(FILES))
    for _ in range(commits):
        table.commit_bytes(data)
    return table


def peak_of_scan(table: TableBuilder) -> tuple[int, int]:
    """Live files found, and the bytes of Python that were held at most."""
    opened = table.open().snapshot()
    tracemalloc.start()
    live = sum(batch.adds.num_rows for batch in opened.log.scan())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return live, peak


@pytest.mark.conformance("REC-04")
def test_superseded_actions_have_no_effect(replays: list[FileReplay], pool: pa.MemoryPool) -> None:
    few, many = superseding(8), superseding(200)

    live, peak = peak_of_scan(few)
    arrow_peak = pool.max_memory()
    live_of_many, peak_of_many = peak_of_scan(many)

    assert live == live_of_many == FILES
    assert [len(replay) for replay in replays] == [FILES, FILES]
    assert peak_of_many < 2 * peak + (1 << 20)
    assert pool.max_memory() < 2 * arrow_peak + (1 << 20)
    assert pool.bytes_allocated() < 1 << 20


def test_free_memory_is_released_while_many_sidecars_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[int] = []
    monkeypatch.setattr(checkpoint_reader, "_FILES_PER_RELEASE", 2)
    monkeypatch.setattr(checkpoint_reader, "release_unused_memory", lambda: released.append(1))
    table = TableBuilder()
    table.commit([features("v2Checkpoint"), metadata(), *(add(f"f{n}") for n in range(6))])
    table.v2_checkpoint(sidecars=5)
    assert table.open().snapshot().counts.num_files == 6
    assert len(released) == 2
