"""A read-only store on any file system of fsspec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from delta_maintenance.address import Address
from delta_maintenance.errors import RefusedError, StorageError
from delta_maintenance.storage.core.base import Put
from delta_maintenance.storage.core.directory_store import DirectoryStore
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.storage.fsspec.tree import FsspecTree

if TYPE_CHECKING:
    import pyarrow as pa


class FsspecStore(DirectoryStore):
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

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._refuse(path)

    def put(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        self._refuse(path)

    def delete(self, path: str) -> None:
        self._refuse(path)

    def delete_many(self, paths: Iterable[str]) -> dict[str, StorageError]:
        for path in [check_path(path) for path in paths]:
            self._refuse(path)
        return {}

    def delete_unchanged(self, files: pa.Table) -> dict[str, StorageError]:
        return self.delete_many(files["path"].to_pylist())

    def remove_empty_directory(self, path: str) -> bool:
        self._refuse(path)

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
