"""The folder where files of a log wait until they are known to be sound."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from delta_maintenance.errors import VerificationError
from delta_maintenance.protocol.delta_log import LogFileKind
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.write.staging import publish, staging

CLASSIC = "00000000000000000007.checkpoint.parquet"
SIDECAR = "_sidecars/x.parquet"


@pytest.fixture(autouse=True)
def temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", [CLASSIC, SIDECAR])
def test_a_staged_file_is_published_unchanged_and_deleted_locally(name: str) -> None:
    store = MemoryStore(now_ms=lambda: 5)
    data = os.urandom(3 << 20)
    with staging() as staged:
        staged.path(name).write_bytes(data)
        status = publish(staged, store, name)
        assert not staged.path(name).exists()
    assert (status.path, status.size, status.modified_ms) == (f"_delta_log/{name}", len(data), 5)
    assert store.read(status.path) == data


@pytest.mark.conformance("FILE-14", "CKPT-29")
def test_no_file_of_another_writer_is_overwritten() -> None:
    store = MemoryStore()
    store.put(f"_delta_log/{CLASSIC}", b"theirs")
    with staging() as staged:
        staged.path(CLASSIC).write_bytes(b"ours")
        with pytest.raises(FileExistsError):
            publish(staged, store, CLASSIC)
        assert staged.path(CLASSIC).read_bytes() == b"ours"
    assert store.read(f"_delta_log/{CLASSIC}") == b"theirs"


@pytest.mark.conformance("PQ-04")
@pytest.mark.parametrize("arrived", [None, b"", b"our", b"ours and more"])
def test_a_partial_upload_is_reported(arrived: bytes | None) -> None:
    class Lossy(MemoryStore):
        """Says done, and has something else."""

        def put_if_absent(self, path: str, data: bytes) -> object:  # type: ignore[override]
            if arrived is not None:
                return super().put_if_absent(path, arrived)
            return None

    with staging() as staged:
        staged.path(CLASSIC).write_bytes(b"ours")
        with pytest.raises(VerificationError) as failure:
            publish(staged, Lossy(), CLASSIC)
    assert failure.value.file == f"_delta_log/{CLASSIC}"
    found = "no" if arrived is None else str(len(arrived))
    assert f"{found} bytes instead of 4" in str(failure.value)


def test_a_staged_file_is_listed_like_one_of_a_log() -> None:
    with staging() as staged:
        staged.path(CLASSIC).write_bytes(b"1234")
        entry = staged.entry(CLASSIC)
        assert (entry.file.kind, entry.file.version) == (LogFileKind.CLASSIC_CHECKPOINT, 7)
        assert (entry.path, entry.status.size) == (f"_delta_log/{CLASSIC}", 4)
        assert staged.store.read(entry.path) == b"1234"
        staged.path(CLASSIC).unlink()
        with pytest.raises(VerificationError, match="no longer exists"):
            staged.entry(CLASSIC)


def test_nothing_is_left_behind(temporary_files: Path) -> None:
    with pytest.raises(KeyboardInterrupt), staging() as staged:
        staged.path(SIDECAR).write_bytes(b"x")
        assert staged.root.parent == temporary_files
        raise KeyboardInterrupt
    assert list(temporary_files.iterdir()) == []
