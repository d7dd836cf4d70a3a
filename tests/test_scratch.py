"""The temporary folder of a killed process is removed by the next process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delta_maintenance.errors import StorageError
from delta_maintenance.scratch import ABANDONED_AFTER, remove_abandoned, scratch_folder

NOW = datetime.now(UTC)
LATER = NOW + ABANDONED_AFTER + timedelta(hours=1)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def folder_of_a_process(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process in the middle of its work, and its folder."""
    code = (
        "import sys, time\n"
        "from delta_maintenance.scratch import scratch_folder\n"
        "with scratch_folder() as folder:\n"
        "    (folder / 'file').write_text('x')\n"
        "    print(folder, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(parent)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.process
def test_only_the_folder_of_a_killed_process_is_removed_after_a_day(parent: Path) -> None:
    process, folder = folder_of_a_process(parent)
    assert folder.parent == parent and folder.stat().st_mode & 0o077 == 0
    assert remove_abandoned(parent, now=LATER) == [], "its owner is at work"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    strangers = [parent / "delta-maintenance-other", parent / "other"]
    for stranger in strangers:
        stranger.mkdir()
    (parent / "delta-maintenance-link").symlink_to(strangers[1])
    assert remove_abandoned(parent, now=NOW) == [], "it is too young"
    with scratch_folder(now=lambda: LATER) as own:
        assert not folder.exists() and own.is_dir()
        assert all(stranger.is_dir() for stranger in strangers)
    assert not own.exists()


def test_an_unlistable_temporary_directory_is_tolerated(parent: Path) -> None:
    assert remove_abandoned(parent / "gone", now=LATER) == []


def test_a_disk_without_room_for_a_folder_is_an_error_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", find_none)
    with pytest.raises(StorageError, match="cannot write to the temporary directory.*TMPDIR"):
        scratch_folder().__enter__()
