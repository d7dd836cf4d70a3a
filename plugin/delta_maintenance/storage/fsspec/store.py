"""A read-only store on any file system of fsspec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from delta_maintenance.address import Address
from delta_maintenance.errors import RefusedError
from delta_maintenance.storage.core.directory_store import DirectoryStore
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.storage.core.read_only import ReadOnlyStore
from delta_maintenance.storage.fsspec.tree import FsspecTree


class FsspecStore(ReadOnlyStore, DirectoryStore):
    """The files below an address of fsspec, chained or not.

    Every call that would write or delete raises `RefusedError`, because fsspec has no call that
    creates a file exactly once. fsspec's listing caches are off, and paths are never treated as
    patterns.
    """

    def __init__(self, address: Address, storage_options: Mapping[str, str] | None = None) -> None:
        tree = FsspecTree.open(address, storage_options or {})
        super().__init__(address, tree)
        self._scheme = address.scheme or "file"
        self._is_chained = address.is_chained

    def _refuse(self, path: str) -> NoReturn:
        check_path(path)
        kind = "a chained address" if self._is_chained else f"{self._scheme}: addresses"
        raise RefusedError(
            f"{kind} can only be read, because fsspec has no call that creates a file exactly once "
            "and a commit could overwrite another one",
            table=self.root,
            file=path,
            remedy="use the engine that writes this table, or a store that commits "
            "(docs/stores.md)",
        )
