"""Files of a log in storage classes from which no file can be read at once. None is requested: a
store may answer with an error, or begin to retrieve the file, which costs money.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO, NoReturn

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.storage.core.base import Store, WrappedStore
from delta_maintenance.storage.core.listing import ARCHIVES
from delta_maintenance.table.read.log_inventory import LogInventory


def archived_log_files(store: Store, inventory: LogInventory) -> dict[str, str]:
    """Returns the storage classes of the files that cannot be read at once, by path.

    Only stores with such classes list the log for this.
    """
    paths = [entry.path for entry in inventory.entries if _is_text(entry.path)]
    archived = store.list_archived(pa.chunked_array([paths], pa.string()))
    classes = (ARCHIVES[number] for number in archived["archive"].to_pylist())
    return dict(sorted(zip(archived["path"].to_pylist(), classes, strict=True)))


def cannot_be_read(storage_class: str) -> str:
    """Returns the problem of a file, as one clause."""
    return f"the file is in the storage class {storage_class} and cannot be read at once"


def _is_text(path: str) -> bool:
    """Whether a path is UTF-8, as all keys of object stores are; a name on a disk may be bytes."""
    return path.encode(errors="replace").decode() == path


class UnretrievedLog(WrappedStore):
    """A store whose archived files count as damaged, and are not requested."""

    def __init__(self, store: Store, classes: Mapping[str, str]) -> None:
        super().__init__(store)
        self._classes = classes

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
