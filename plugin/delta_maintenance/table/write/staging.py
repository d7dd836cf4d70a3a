"""Local staging of files of the log, which are checked before they are published."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from delta_maintenance.errors import VerificationError
from delta_maintenance.protocol.delta_log.file_names import SIDECAR_DIRECTORY, parse_log_file_name
from delta_maintenance.scratch import scratch_folder
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.read.segment import LOG_DIRECTORY, LogEntry

MOST_REPLACED = 512 << 20
"""The largest file in bytes that replaces an empty one; it is held in memory."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A folder laid out like a table, with a log and a folder of sidecars."""

    store: LocalStore
    root: Path

    def path(self, name: str) -> Path:
        """Returns the local path of a file of the log; `name` is relative to `_delta_log`."""
        return self.root / LOG_DIRECTORY / name

    def entry(self, name: str) -> LogEntry:
        """Returns the staged file as an entry of a listing."""
        path = f"{LOG_DIRECTORY}/{name}"
        status = self.store.stat(path)
        if status is None:
            raise VerificationError("a staged file no longer exists", file=path)
        return LogEntry(parse_log_file_name(name), status)


@contextmanager
def staging() -> Iterator[Staging]:
    """Creates a staging folder, which is always removed at the end of the block."""
    with scratch_folder() as root:
        (root / LOG_DIRECTORY / SIDECAR_DIRECTORY).mkdir(parents=True)
        yield Staging(LocalStore(str(root)), root)


def publish(staged: Staging, store: Store, name: str) -> FileStatus:
    """Publishes a staged checkpoint file or sidecar, and deletes the local copy.

    An empty file of that name is replaced in one step. Raises `FileExistsError` if another file
    of that name exists, and `VerificationError` if the published file is incomplete.
    """
    path = f"{LOG_DIRECTORY}/{name}"
    size = staged.path(name).stat().st_size
    try:
        with staged.path(name).open("rb") as source, store.create(path) as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except FileExistsError:
        found = store.stat(path)
        if found is None or found.size or size > MOST_REPLACED:
            raise
        # Its writer has died, or will replace this file by a checkpoint of the same version. At no
        # time is the name without a checkpoint, as it would be after a deletion.
        store.put(path, staged.path(name).read_bytes())
    status = require_whole(store, path, size=size)
    staged.path(name).unlink()
    return status


def require_whole(store: Store, path: str, *, size: int) -> FileStatus:
    """Returns the status of a file that was just published; `VerificationError` if it is
    incomplete.
    """
    status = store.stat(path)
    if status is None or status.size != size:
        raise VerificationError(
            f"the published file has {status.size if status else 'no'} bytes instead of {size}",
            file=path,
            remedy="find the other process that writes to this folder",
        )
    return status
