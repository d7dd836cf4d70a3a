"""The store interface, what the library requires from a store, and stores that are only read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO, Literal, NoReturn, Protocol, TypeAlias

from delta_maintenance.address import Address
from delta_maintenance.errors import (
    CommitUnknownError,
    DeltaMaintenanceError,
    RefusedError,
    StorageError,
)
from delta_maintenance.limits import ReadLimits
from delta_maintenance.storage.core.paths import FileStatus, check_directory, check_path

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_maintenance.rest.usage import Usage
    from delta_maintenance.storage.core.listing import Skip


DeletedState: TypeAlias = Literal["freed", "later", "never", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedBytes:
    """What becomes of the bytes of a file that is deleted now, by the settings of its store."""

    state: DeletedState
    """`never`: the store keeps them until somebody deletes them there."""
    why: str
    """One clause."""
    after: timedelta | None = None
    """With `later`: how long after the deletion they end at the latest."""

    @classmethod
    def kept_for(cls, after: timedelta, why: str) -> DeletedBytes:
        """Returns those that end after a time; without a time, those that end at once."""
        if not after:
            return FREED
        return cls(state="later", after=after, why=why)


FREED = DeletedBytes(state="freed", why="the store keeps nothing of deleted files")


@dataclass(frozen=True, slots=True, kw_only=True)
class OldVersion:
    """The content of a file before it was deleted or replaced."""

    path: str
    """Relative to the root of the store."""
    version_id: str
    size: int
    """Bytes."""
    ends_ms: int | None
    """When a rule of the store deletes it, in milliseconds since 1970-01-01 UTC; None if no rule is
    known to do so."""
    ends_by: str
    """What deletes it then, or what is missing."""
    problem: str | None = None
    """Why its content cannot be read; None if it can be."""


class OldVersions(Protocol):
    """Access to old versions. All calls raise `StorageError`."""

    def list(self) -> Iterator[OldVersion]:
        """Lists all old versions below the root, in the same order each time. Memory is bounded by
        a page."""

    def read(self, version: OldVersion, first: int, last: int) -> bytes:
        """Reads the bytes from a first to a last position, inclusive."""

    def bytes_of_deleted(self) -> DeletedBytes:
        """See `Store.bytes_of_deleted`."""


SOFT_DELETED = "it is soft-deleted, so that only restoring it makes its content readable"


__all__ = ["FileStatus"]


class Put(Enum):
    """The outcome of a put-if-absent.

    There is no third value: a put whose outcome is still unknown after reading the file back raises
    `CommitUnknownError`.
    """

    DONE = "done"
    """This call created the file with the given bytes."""
    EXISTS = "exists"
    """A file of another writer exists; it was not changed."""


class Store(ABC):
    """The files below one table root. Safe to share between threads.

    Every path is relative to the root, `/`-separated and literal: no globs, no `..`, no empty
    segment, no URI encoding. `InvalidRequestError` for any other. Answers are never cached and
    never partial: if the backend cannot answer in full, `StorageError` is raised, or
    `StorageAccessError` if only other credentials, permissions or another address can help.
    """

    address: Address
    """The address of the table."""

    parallel_reads: int = 16
    """The number of whole files that are worth reading at once, enough to hide the latency of a
    request.
    """
    read_limits: ReadLimits | None = None
    """Limits for reading one file of a log; None for the limits from the environment."""
    tells_old_versions: bool = False
    """Whether `old_versions` has everything that the store keeps of deleted files."""
    is_near: bool = False
    """Whether a call can be faster than handing it to another thread."""

    @abstractmethod
    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        """Lists the files directly in `directory` whose bare name is `>= start`, by ascending name.

        An empty `directory` means the root. Sub-directories are left out; temporary files of
        unfinished writes are not. A missing directory counts as empty. An error on any page is
        raised, so a listing is never silently shorter.
        """

    @abstractmethod
    def stat(self, path: str) -> FileStatus | None:
        """Returns the size and the time of one file, or None if it does not exist."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Reads the whole file. `FileNotFoundError` if it does not exist."""

    def read_head(self, path: str, size: int) -> bytes:
        """Reads the first `size` bytes of a file, or all of a shorter one, with at most one
        request.

        `FileNotFoundError` if it does not exist.
        """
        with self.open(path) as file:
            return file.read(size)

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Opens the file for random access (Parquet). `FileNotFoundError` if it does not exist."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> Put:
        """Creates the file in one atomic, durable step, or leaves the existing one alone.

        `data` should contain something unique to this call, such as a transaction ID: if a store
        does not record the writer of a file, comparing its bytes resolves an ambiguous answer.
        `CommitUnknownError` if even that fails; `RefusedError` if the store has no atomic create.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Writes the whole file and replaces an existing one. For hints and manifests only."""

    def put_from(self, path: str, source: BinaryIO) -> None:
        """Like `put`, with the bytes of a seekable local file. Stores that can do not hold them all
        in memory.
        """
        source.seek(0)
        self.put(path, source.read())

    @abstractmethod
    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Creates a file and returns a stream that writes it and can read it back.

        The block may close the stream. The file becomes visible as a whole when the block ends
        without an error, and not at all if the block raises. `FileExistsError` if another writer's
        file exists when the block ends; otherwise the errors of `put_if_absent`.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Deletes exactly this file. A missing file is not an error."""

    def delete_many(self, paths: Iterable[str]) -> dict[str, StorageError]:
        """Deletes exactly these files. Returns the error for each file that may still exist.

        An empty result means that all of them are deleted.
        """
        failures = {}
        for path in [check_path(path) for path in paths]:
            try:
                self.delete(path)
            except StorageError as error:
                failures[path] = error
        return failures

    @property
    def root(self) -> str:
        """The address as text, without a trailing slash; for messages."""
        return str(self.address)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address by which the log can refer to this root, `root` first."""
        return (self.root,)

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        """Lists everything below `directory` at any depth, in batches of `listing.TREE`, in no
        order.

        Nothing is filtered, except that stores with directories do not descend into those that
        `skip` selects; the directory itself is listed. Links are listed and never followed. A
        missing directory counts as empty. An error on any page or in any directory is raised, so a
        listing is never silently shorter.
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
        """Returns size and time of those files that exist now (`listing.STATUSES`).

        The default lists their directories; a store may have a faster way.
        """
        # Imported here, because most callers of a store need no pyarrow.
        from delta_maintenance.storage.core.listing import statuses_by_listing

        return statuses_by_listing(self.list_from, paths)

    def list_archived(self, paths: pa.ChunkedArray) -> pa.Table:
        """Returns those of the files that cannot be read at once (`listing.TREE`).

        Only stores with such storage classes have any. The contents of the directories are listed.
        """
        from delta_maintenance.storage.core.listing import TREE

        return TREE.empty_table()

    def delete_unchanged(self, files: pa.Table) -> dict[str, StorageError]:
        """Like `delete_many`, for the rows of a listing (`listing.STATUSES`).

        A file whose size or time differs from the listing is kept, as far as the store can detect
        that without a further request.
        """
        return self.delete_many(files["path"].to_pylist())

    def remove_empty_directory(self, path: str) -> bool:
        """Removes a directory if it is empty, in one step. Returns whether it no longer exists.

        False if it is not empty, and on stores without directories.
        """
        check_path(path)
        return False

    def remove_empty_directories(self, paths: Iterable[str]) -> Iterator[bool]:
        """Calls `remove_empty_directory` for each path; an error counts as False.

        Stores that resolve a path step by step override this with a faster way for many paths.
        """
        for path in paths:
            try:
                removed = self.remove_empty_directory(path)
            except DeltaMaintenanceError:
                removed = False
            yield removed

    @property
    def usage(self) -> Usage | None:
        """The requests that this store has sent; None if it does not count them."""
        return None

    @property
    def old_versions(self) -> OldVersions | None:
        """The contents of deleted and replaced files that the store keeps; None if it keeps none,
        or does not tell. `tells_old_versions` says which.
        """
        return None

    def bytes_of_deleted(self) -> DeletedBytes:
        """Returns what becomes of the bytes of files that are deleted now.

        Asks for the settings of the bucket, with at most three requests. Raises `StorageError` if
        they cannot be read.
        """
        if self.old_versions is not None:
            return self.old_versions.bytes_of_deleted()
        if self.tells_old_versions:
            return FREED
        return DeletedBytes(
            state="unknown", why="this store does not tell what it keeps of deleted files"
        )

    def close(self) -> None:  # noqa: B027  most stores have nothing to close
        """Closes the connections. The store must not be used afterwards."""

    def __repr__(self) -> str:
        # The default `repr` of a dataclass would show fields that can contain credentials.
        return f"{type(self).__name__}({self.root!r})"


@contextmanager
def new_file(store: Store, path: str) -> Iterator[BinaryIO]:
    """Like `Store.create`, but an unknown outcome is a `StorageError`.

    The operation can run again without a check: no commit refers to the file.
    """
    try:
        with store.create(path) as file:
            yield file
    except CommitUnknownError as unknown:
        raise StorageError(
            unknown.problem, file=unknown.file, remedy="run again"
        ) from unknown.__cause__


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

    def list_archived(self, paths: pa.ChunkedArray) -> pa.Table:
        return self._store.list_archived(paths)

    def read(self, path: str) -> bytes:
        return self._store.read(path)

    def read_head(self, path: str, size: int) -> bytes:
        return self._store.read_head(path, size)

    def open(self, path: str) -> BinaryIO:
        return self._store.open(path)
