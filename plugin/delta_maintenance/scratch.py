"""Temporary folders that are removed even if their process is killed.

A killed process cannot remove its folder, so a later process of the same user does. The owner of a
folder holds a lock on a file in it, which tells whether the owner is alive.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

from delta_maintenance import clock
from delta_maintenance.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows: dead owners cannot be detected, so folders are kept.
    fcntl = None  # type: ignore[assignment]  # absent on Windows

_PREFIX = "delta-maintenance-"
_OWNER = ".owner"
ABANDONED_AFTER = timedelta(days=1)
"""The minimum age at which a folder without an owner is removed."""


@contextmanager
def scratch_folder(*, now: clock.Clock = clock.now) -> Iterator[Path]:
    """Creates a folder that only this user can read, for the duration of the block.

    Also removes folders of killed processes of this user.
    """
    with ExitStack() as stack:
        # On a full disk, Python finds no directory at all.
        with scratch_writes(Path(os.environ.get("TMPDIR", os.sep))):
            remove_abandoned(Path(tempfile.gettempdir()), now=now())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
            owner = stack.enter_context((folder / _OWNER).open("wb"))
            if fcntl is not None:
                fcntl.flock(owner, fcntl.LOCK_EX)
        yield folder


@contextmanager
def scratch_writes(path: Path) -> Iterator[None]:
    """Turns a failure to write a scratch file into a `StorageError` with a remedy."""
    try:
        yield
    except OSError as error:
        why = str(error) if error.errno is None else os.strerror(error.errno)
        raise StorageError(
            f"cannot write to the temporary directory: {why}",
            file=str(path),
            remedy="make room there, or set TMPDIR to a directory with more, and run again",
        ) from error


def remove_abandoned(parent: Path, *, now: datetime) -> list[Path]:
    """Removes the folders below `parent` whose owners are dead, and returns them.

    Only folders of this user that are older than `ABANDONED_AFTER`; failures are ignored.
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
