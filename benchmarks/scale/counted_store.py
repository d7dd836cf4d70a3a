"""A local store that counts the requests which an object store would receive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from delta_maintenance.errors import StorageError
from delta_maintenance.storage.core.base import FileStatus, Put
from delta_maintenance.storage.local.store import LocalStore

_PAGE = 1000
"""The names that one request lists or deletes."""


class CountedStore(LocalStore):
    """Files on the local disk. A page of a listing, a range of a file and a batch of deletions are
    one request each."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.requests = 0

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        self.ask()
        for number, status in enumerate(super().list_from(directory, start)):
            if number and number % _PAGE == 0:
                self.ask()
            yield status

    def stat(self, path: str) -> FileStatus | None:
        self.ask()
        return super().stat(path)

    def read(self, path: str) -> bytes:
        self.ask()
        return super().read(path)

    def read_head(self, path: str, size: int) -> bytes:
        self.ask()
        return super().read_head(path, size)

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, _CountedFile(super().open(path), self.ask))

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self.ask()
        return super().put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        self.ask()
        super().put(path, data)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        self.ask()
        with super().create(path) as file:
            yield file

    def delete_many(self, paths: Iterable[str]) -> dict[str, StorageError]:
        found = list(paths)
        self.ask(-(-len(found) // _PAGE))
        return super().delete_many(found)

    def ask(self, number: int = 1) -> None:
        """Counts requests. Threads that ask at the same instant may be counted as one."""
        self.requests += number


class _CountedFile:
    """An open file, each reading of which is a request."""

    def __init__(self, file: BinaryIO, ask: Callable[[], None]) -> None:
        self._file = file
        self._ask = ask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        self._ask()
        return self._file.read(size)
