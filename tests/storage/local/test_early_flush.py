"""Large files are flushed while they are written, and no failure of a flush is lost."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from delta_maintenance.errors import StorageError
from delta_maintenance.storage.local import LocalStore, descriptors

# More than the buffer of a file, which has 128 KiB from Python 3.14.
STEP = 1 << 18
PIECE = bytes(STEP)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "_STEP", STEP)


class Disk:
    """Counts flushes, and fails at some of them."""

    def __init__(self, *, failing: tuple[int, ...] = ()) -> None:
        self.failing = failing
        self.flushes = 0
        self.flushed = threading.Event()

    def __call__(self, descriptor: int) -> None:
        self.flushes += 1
        self.flushed.set()
        if self.flushes in self.failing:
            raise OSError(errno.EIO, "the disk failed")


def disk(monkeypatch: pytest.MonkeyPatch, *, failing: tuple[int, ...] = ()) -> Disk:
    found = Disk(failing=failing)
    monkeypatch.setattr(os, "fdatasync", found, raising=False)
    return found


def test_a_large_file_is_flushed_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = disk(monkeypatch)
    store = LocalStore(str(tmp_path))
    with store.create("large") as file:
        file.write(PIECE)
        assert found.flushed.wait(120)
        file.write(PIECE)
    assert (tmp_path / "large").stat().st_size == 2 * STEP


def test_a_small_file_needs_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = disk(monkeypatch)
    with LocalStore(str(tmp_path)).create("small") as file:
        file.write(PIECE[1:])
        file.flush()
    assert not found.flushes


@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_failed_flush_is_an_error_although_the_sync_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int, failing: int
) -> None:
    found = disk(monkeypatch, failing=(failing,))
    before = set(threading.enumerate())
    error: StorageError | None = None
    try:
        with LocalStore(str(tmp_path)).create("large") as file:
            for _ in range(writes):
                found.flushed.clear()
                # No flush begins while another one runs.
                while not found.flushed.wait(0.01):
                    file.write(PIECE)
    except StorageError as raised:
        error = raised
    has_failed = found.flushes >= failing
    assert (error is not None) == has_failed
    assert (tmp_path / "large").exists() != has_failed
    assert not list(tmp_path.glob(".large*"))
    assert set(threading.enumerate()) <= before
