"""Stores that are only read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, NoReturn

import pyarrow as pa

from delta_maintenance.errors import StorageError
from delta_maintenance.rest.usage import Usage
from delta_maintenance.storage.core.base import FileStatus, Put, Store
from delta_maintenance.storage.core.deleted_bytes import DeletedBytes
from delta_maintenance.storage.core.listing import Skip


class ReadOnlyStore(Store):
    """Refuses everything that writes. A subclass says why, and comes before its other base."""

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._refuse(path)

    def put(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        self._refuse(path)

    def delete(self, path: str) -> None:
        self._refuse(path)

    def delete_many(self, paths: Iterable[str]) -> dict[str, StorageError]:
        for path in paths:
            self._refuse(path)
        return {}

    def delete_unchanged(self, files: pa.Table) -> dict[str, StorageError]:
        return self.delete_many(files["path"].to_pylist()[:1])

    def remove_empty_directory(self, path: str) -> bool:
        self._refuse(path)

    @abstractmethod
    def _refuse(self, path: str) -> NoReturn:
        """Raises the error for a request to write this path."""


class WrappedStore(ReadOnlyStore):
    """Another store, of which a subclass changes what is read. Does not close it."""

    def __init__(self, store: Store) -> None:
        self.address = store.address
        self.parallel_reads = store.parallel_reads
        self.read_limits = store.read_limits
        self.is_near = store.is_near
        self._store = store

    @property
    def root(self) -> str:
        return self._store.root

    @property
    def usage(self) -> Usage | None:
        return self._store.usage

    def bytes_of_deleted(self) -> DeletedBytes:
        return self._store.bytes_of_deleted()

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

    def archived(self, paths: pa.ChunkedArray) -> pa.Table:
        return self._store.archived(paths)

    def read(self, path: str) -> bytes:
        return self._store.read(path)

    def read_head(self, path: str, size: int) -> bytes:
        return self._store.read_head(path, size)

    def open(self, path: str) -> BinaryIO:
        return self._store.open(path)
