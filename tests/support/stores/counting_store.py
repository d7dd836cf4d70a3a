"""A store that records the requests that a remote store would receive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from delta_maintenance.address import Address
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import FileStatus

PAGE = 1000
"""The number of names that one request lists."""


class CountingStore(MemoryStore):
    """Files in memory. Records every request, and one request for each page of a listing."""

    def __init__(self, address: Address | None = None) -> None:
        super().__init__(address)
        self.requests: list[str] = []
        """One line per request so far; clear it to start again."""
        self.fails: Exception | None = None
        """Raised instead of every answer while it is set."""

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        request = f"list {directory} from {start or 'the start'}"
        self._ask(request)
        return self._paged(request, super().list_from(directory, start))

    def stat(self, path: str) -> FileStatus | None:
        self._ask(f"stat {path}")
        return super().stat(path)

    def read(self, path: str) -> bytes:
        self._ask(f"read {path}")
        return super().read(path)

    def read_head(self, path: str, size: int) -> bytes:
        self._ask(f"read {path}")
        return MemoryStore.read(self, path)[:size]

    def open(self, path: str) -> BinaryIO:
        self._ask(f"open {path}")
        return super().open(path)

    def _paged(self, request: str, files: Iterator[FileStatus]) -> Iterator[FileStatus]:
        for number, file in enumerate(files):
            if number and number % PAGE == 0:
                self._ask(request)
            yield file

    def _ask(self, request: str) -> None:
        self.requests.append(request)
        if self.fails is not None:
            raise self.fails
