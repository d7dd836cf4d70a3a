"""Folders below the temporary directory of this machine that do not stay for ever.

A process that is killed cannot remove its folder, so the next one of the same user does. The kernel
tells whether the owner of a folder is alive: it holds a lock on a file in there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

from delta_maintenance import clock

try:
    import fcntl
except ImportError:  # Windows: nothing tells that an owner is dead, so folders stay.
    fcntl = None  # type: ignore[assignment]  # absent on Windows

_PREFIX = "delta-maintenance-"
_OWNER = ".owner"
ABANDONED_AFTER = timedelta(days=1)
"""How old a folder without an owner must be to be removed."""


@contextmanager
def scratch_folder(*, now: clock.Clock = clock.now) -> Iterator[Path]:
    """A folder that only this user can read, and that is gone at the end of the block.

    Removes what processes of this user that were killed left behind.
    """
    remove_abandoned(Path(tempfile.gettempdir()), now=now())
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        with (folder / _OWNER).open("wb") as owner:
            if fcntl is not None:
                fcntl.flock(owner, fcntl.LOCK_EX)
            yield folder


def remove_abandoned(parent: Path, *, now: datetime) -> list[Path]:
    """Removes the folders below `parent` whose owners are dead, and returns them.

    Only those of this user that are older than `ABANDONED_AFTER`; what cannot be removed stays.
    """
    if fcntl is None:
        return []
    before = (now - ABANDONED_AFTER).timestamp()
    removed = []
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.startswith(_PREFIX) and _is_old(entry, before):
                    folder = Path(entry.path)
                    if _is_abandoned(folder):
                        shutil.rmtree(folder, ignore_errors=True)
                        removed.append(folder)
    return removed


def _is_old(entry: os.DirEntry[str], before: float) -> bool:
    status = entry.stat(follow_symlinks=False)
    is_own = entry.is_dir(follow_symlinks=False) and status.st_uid == os.getuid()
    return is_own and status.st_mtime < before


def _is_abandoned(folder: Path) -> bool:
    with (folder / _OWNER).open("rb") as owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
