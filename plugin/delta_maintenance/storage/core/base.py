"""The store interface, and the guarantees that the library requires from a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO

from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError, StorageError
from delta_maintenance.limits import ReadLimits
from delta_maintenance.storage.core.file_status import FileStatus
from delta_maintenance.storage.core.paths import check_directory, check_path

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_maintenance.storage.core.listing import Skip

__all__ = ["FileStatus", "Put", "Store"]


class Put(Enum):
    """How a put-if-absent ended. There is no third value: an outcome that cannot be settled by
    reading back raises `CommitUnknownError`."""

    DONE = "done"
    """These bytes are there now, written by this call."""
    EXISTS = "exists"
    """A file of another writer exists; it was not changed."""


class Store(ABC):
    """The files below one table root. Safe to share between threads.

    Every path is relative to the root, `/`-separated and literal: no globs, no `..`, no empty
    segment, no URI encoding. `InvalidRequestError` for any other. Answers are never cached and
    never partial: if the backend cannot answer in full, `StorageError` is raised, or
    `StorageAccessError` if only other credentials, permissions or another address can help.
    """

    root: str
    """The address the user gave, without a trailing slash; for messages."""

    parallel_reads: int = 16
    """How many whole files at once are worth reading: as many as hide the time of a request."""
    read_limits: ReadLimits | None = None
    """Limits for reading a file of a table's log; None for those of the environment."""
    is_near: bool = False
    """Whether a call may be faster than handing it to another thread."""

    @abstractmethod
    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        """The files directly in `directory` whose bare name is `>= start`, by ascending name.

        `directory` may be empty, for the root. Sub-directories are left out; temporary files of
        unfinished writes are not. A directory that does not exist is empty. An error on any page
        is raised, never a shorter listing.
        """

    @abstractmethod
    def stat(self, path: str) -> FileStatus | None:
        """Size and time of one file, or None if there is none."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file. `FileNotFoundError` if there is none."""

    def read_head(self, path: str, size: int) -> bytes:
        """The first `size` bytes of a file, or all of a shorter one; one request at most.

        `FileNotFoundError` if there is none.
        """
        with self.open(path) as file:
            return file.read(size)

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """The file for random access (Parquet). `FileNotFoundError` if there is none."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> Put:
        """Creates the file in one atomic, durable step, or leaves the existing one alone.

        `data` should contain something unique to this call, such as a transaction ID: if a store
        does not record the writer of a file, comparing its bytes resolves an ambiguous answer.
        `CommitUnknownError` if even that fails; `RefusedError` if the store has no atomic create.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Writes the file whole, replacing an existing one. For hints only."""

    @abstractmethod
    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file to be written as a stream, and read back if need be; the block may close it.

        It becomes visible whole when the block ends well, and not at all when the block raises.
        `FileExistsError` if another writer's file exists when the block ends; otherwise the errors
        of `put_if_absent`.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Deletes exactly this file; one that is already gone is no error."""

    def delete_many(self, paths: Iterable[str]) -> dict[str, StorageError]:
        """Deletes exactly these files. Returns the error for each file that may still exist.

        An empty result means that all of them are gone.
        """
        kept = {}
        for path in [check_path(path) for path in paths]:
            try:
                self.delete(path)
            except StorageError as error:
                kept[path] = error
        return kept

    @property
    def address(self) -> Address:
        """The address that the user gave, taken apart."""
        return Address.parse(self.root)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address under which the log may name this root, `root` first."""
        return (self.root,)

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        """Everything below `directory` at any depth, in batches of `listing.TREE`, in no order.

        Nothing is filtered, but a store that has directories does not enter those that `skip`
        names; it lists them, and links, without following any. A directory that does not exist is
        empty. An error on any page or in any directory is raised, never a shorter listing.
        """
        raise RefusedError(
            "this store cannot list a table with all its folders",
            remedy="use a release that can, or an inventory of the table's files",
        )

    def list_level(self, directory: str = "") -> pa.Table | None:
        """The files and directories directly in `directory` (`listing.TREE`).

        None if the store cannot tell them apart, so that only the whole tree can be listed.
        """
        check_directory(directory)
        return None

    def statuses(self, paths: pa.ChunkedArray) -> pa.Table:
        """Size and time of those of the files that exist now (`listing.STATUSES`).

        Found by listing their directories, unless the store has a quicker way.
        """
        # Here, because most callers of a store need no pyarrow.
        from delta_maintenance.storage.core.listing import statuses_by_listing

        return statuses_by_listing(self.list_from, paths)

    def delete_unchanged(self, files: pa.Table) -> dict[str, StorageError]:
        """Like `delete_many`, for the rows of a listing (`listing.STATUSES`).

        A file of another size or time than listed stays, as far as the store can tell without a
        further request.
        """
        return self.delete_many(files["path"].to_pylist())

    def remove_empty_directory(self, path: str) -> bool:
        """Removes a directory if it is empty, in one step. Returns whether it is gone.

        False if it is not empty, and on stores without directories.
        """
        check_path(path)
        return False

    def remove_empty_directories(self, paths: Iterable[str]) -> Iterator[bool]:
        """`remove_empty_directory` for each path in turn; also False where that fails.

        A store that reaches a directory from the root, step by step, has a quicker way for many.
        """
        for path in paths:
            try:
                gone = self.remove_empty_directory(path)
            except DeltaMaintenanceError:
                gone = False
            yield gone

    def close(self) -> None:  # noqa: B027  most stores hold nothing open
        """Closes the connections. The store must not be used afterwards."""

    def __repr__(self) -> str:
        # Never the default of a dataclass: fields of a store may contain credentials.
        return f"{type(self).__name__}({self.root!r})"
