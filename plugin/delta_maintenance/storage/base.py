"""What a store must promise before this library trusts a table to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO

from delta_maintenance.errors import StorageError
from delta_maintenance.storage.paths import check_path


class Put(Enum):
    """How a put-if-absent ended. There is no third value: an outcome that cannot be settled by
    reading back raises `CommitUnknownError`."""

    DONE = "done"
    """These bytes are there now, written by this call."""
    EXISTS = "exists"
    """Somebody else's file is there; it was not touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """One file as the store lists it."""

    path: str
    """Relative to the store's root, `/`-separated, exactly as stored (never URI-encoded)."""
    size: int
    """Bytes."""
    modified_ms: int
    """Milliseconds since 1970-01-01 UTC."""


class Store(ABC):
    """The files below one table root. Safe to share between threads.

    Every path is relative to the root, `/`-separated and literal: no globs, no `..`, no empty
    segment, no URI encoding. `InvalidRequestError` for any other. Answers are never cached, never
    partial: what the backend cannot answer in full raises `StorageError`, or `StorageAccessError`
    where only the caller's credentials, permissions or address can change the answer.
    """

    root: str
    """The address the user gave, without a trailing slash; for messages."""

    parallel_reads: int = 16
    """How many whole files at once are worth reading: as many as hide the time of a request."""

    @abstractmethod
    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        """The files directly in `directory` whose bare name is `>= start`, by ascending name.

        `directory` may be empty, for the root. Sub-directories are left out; temporary files of
        unfinished writes are not. A directory that does not exist is empty. An error on any page
        is raised, never a shorter listing.
        """

    @abstractmethod
    def stat(self, path: str) -> FileStatus | None:
        """Size and time of one file, or None where there is none."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file. `FileNotFoundError` where there is none."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """The file for random access (Parquet). `FileNotFoundError` where there is none."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> Put:
        """Creates the file in one atomic, durable step, or leaves the existing one alone.

        `data` should hold something unique to this call (a transaction id): where a store keeps no
        mark of who wrote a file, equality with what is found afterwards settles an ambiguous
        answer. `CommitUnknownError` where even that fails; `RefusedError` where the store has no
        atomic create.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Writes the file whole, replacing an existing one. For hints only."""

    @abstractmethod
    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file to be written as a stream; the block may close it.

        It becomes visible whole when the block ends well, and not at all when the block raises.
        `FileExistsError` when the block ends and somebody else's file is there; otherwise the
        errors of `put_if_absent`.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Deletes exactly this file; one that is already gone is no error."""

    def delete_many(self, paths: Iterable[str]) -> dict[str, StorageError]:
        """Deletes exactly these files. Returns what keeps each file that may still be there.

        An empty answer means that all of them are gone.
        """
        kept = {}
        for path in [check_path(path) for path in paths]:
            try:
                self.delete(path)
            except StorageError as error:
                kept[path] = error
        return kept

    def close(self) -> None:  # noqa: B027  most stores hold nothing open
        """Lets go of connections. The store is not to be used afterwards."""

    def __repr__(self) -> str:
        # Never the default of a subclass: its fields may hold credentials.
        return f"{type(self).__name__}({self.root!r})"
