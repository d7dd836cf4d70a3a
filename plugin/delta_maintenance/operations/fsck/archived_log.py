"""Files of a log in storage classes from which no file can be read at once. None is requested: a
store may answer with an error, or begin to retrieve the file, which costs money.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import BinaryIO, NoReturn

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.storage.core.listing import ARCHIVES, Skip
from delta_maintenance.storage.core.read_only import ReadOnlyStore
from delta_maintenance.table.read.log_inventory import LogInventory


def archived_log_files(store: Store, inventory: LogInventory) -> dict[str, str]:
    """Returns the storage classes of the files that cannot be read at once, by path.

    Only stores with such classes list the log for this.
    """
    paths = pa.chunked_array([[entry.path for entry in inventory.entries]], pa.string())
    found = store.archived(paths)
    classes = (ARCHIVES[number] for number in found["archive"].to_pylist())
    return dict(sorted(zip(found["path"].to_pylist(), classes, strict=True)))


def cannot_be_read(storage_class: str) -> str:
    """Returns the problem of a file, as one clause."""
    return f"the file is in the storage class {storage_class} and cannot be read at once"


class UnretrievedLog(ReadOnlyStore):
    """A store whose archived files count as damaged, and are not requested."""

    def __init__(self, store: Store, classes: Mapping[str, str]) -> None:
        self.address = store.address
        self.parallel_reads = store.parallel_reads
        self.read_limits = store.read_limits
        self.is_near = store.is_near
        self._store = store
        self._classes = classes

    @property
    def root(self) -> str:
        return self._store.root

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._store.addresses

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        return self._store.list_from(directory, start)

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        return self._store.list_tree(directory, skip=skip)

    def list_level(self, directory: str = "") -> pa.Table | None:
        return self._store.list_level(directory)

    def stat(self, path: str) -> FileStatus | None:
        return self._store.stat(path)

    def statuses(self, paths: pa.ChunkedArray) -> pa.Table:
        return self._store.statuses(paths)

    def read(self, path: str) -> bytes:
        self._require_readable(path)
        return self._store.read(path)

    def read_head(self, path: str, size: int) -> bytes:
        # No bytes are never valid: hints are passed over, and other files are read as a whole.
        return b"" if path in self._classes else self._store.read_head(path, size)

    def open(self, path: str) -> BinaryIO:
        self._require_readable(path)
        return self._store.open(path)

    def _require_readable(self, path: str) -> None:
        if path in self._classes:
            raise CorruptTableError(
                cannot_be_read(self._classes[path]),
                file=path,
                remedy="retrieve it with the tools of the store, and exclude the log from its "
                "lifecycle rules",
            )

    def _refuse(self, path: str) -> NoReturn:
        raise RefusedError(
            "nothing is written while files of the log are archived",
            file=path,
            remedy="retrieve them with the tools of the store",
        )
