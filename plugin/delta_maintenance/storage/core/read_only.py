"""Stores that are only read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import BinaryIO, NoReturn

import pyarrow as pa

from delta_maintenance.errors import StorageError
from delta_maintenance.storage.core.base import Put, Store


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
