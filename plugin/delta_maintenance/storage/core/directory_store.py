"""A store over a file system with directories, on top of the requests of one backend."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Literal, NoReturn

from delta_maintenance.address import Address
from delta_maintenance.errors import RefusedError, StorageError
from delta_maintenance.rest.failure import RequestFailure, storage_error
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.storage.core.paths import check_directory, check_path, check_start
from delta_maintenance.storage.core.streams import open_ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_maintenance.storage.core.listing import Listing, Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a directory as the backend describes it."""

    name: str
    """The bare, literal name."""
    kind: Literal["file", "directory", "other"]
    """`other` is a link, a pipe and the like."""
    size: int
    """Bytes; 0 unless it is a file."""
    modified_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    tag: str = ""
    """Identifies the file, if the backend has such identifiers. A replaced file gets a new tag."""


class FileTree(ABC):
    """The directories and files of one file system below a table's root.

    Paths are relative to the root and literal; the empty path is the root. Every call is one
    request with retries, and raises `RequestFailure`.
    """

    permissions: ClassVar[dict[str, str]]
    """The names that the backend gives the permissions to `read`, `list`, `write` and `delete`."""

    @abstractmethod
    def entries(self, directory: str, start: str = "") -> Iterable[Entry]:
        """Lists a directory, in any order.

        Names before `start` may be left out. A failure that is `missing` if the directory does not
        exist.
        """

    @abstractmethod
    def entry(self, path: str) -> Entry:
        """Describes a file or directory. A failure that is `missing` if it does not exist."""

    @abstractmethod
    def get(self, path: str, *, span: tuple[int, int] | None = None) -> bytes:
        """Reads a file, or the part of it that `span` selects, as far as it exists."""

    def close(self) -> None:  # noqa: B027  most backends have nothing to close
        """Closes the connections."""


class DirectoryStore(Store):
    """The read methods of a store over a `FileTree`."""

    is_near = False

    def __init__(self, address: Address, tree: FileTree, *, aliases: Iterable[str] = ()) -> None:
        self.address = address
        self._addresses = tuple(dict.fromkeys((str(address), *aliases)))
        self._tree = tree

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        return self._list(check_directory(directory), check_start(start))

    def stat(self, path: str) -> FileStatus | None:
        try:
            entry = self._entry(path)
        except FileNotFoundError:
            return None
        return FileStatus(path=path, size=entry.size, modified_ms=entry.modified_ms)

    def read(self, path: str) -> bytes:
        return self._get(check_path(path))

    def read_head(self, path: str, size: int) -> bytes:
        return self._get(check_path(path), span=(0, size))

    def open(self, path: str) -> BinaryIO:
        entry = self._entry(path)

        def fetch(first: int, count: int) -> bytes:
            data = self._get(path, span=(first, count))
            if len(data) != count:
                raise StorageError(
                    "the file became shorter while it was read", file=path, remedy="run again"
                )
            return data

        return open_ranges(fetch, entry.size)

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        # Imported here and below, so that only tree listings load pyarrow.
        from delta_maintenance.storage.core.listing import walk

        def scan(path: str) -> Listing:
            return self._scan(path, skip)

        return walk(scan, check_directory(directory), parallel=self.parallel_reads)

    def list_level(self, directory: str = "") -> pa.Table:
        return self._scan(check_directory(directory), lambda _: True).table()

    def close(self) -> None:
        self._tree.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store contains credentials and cannot be pickled: open another one")

    def _list(self, directory: str, start: str) -> Iterator[FileStatus]:
        within = f"{directory}/" if directory else ""
        # The whole directory is read before the first entry is yielded.
        for entry in sorted(self._entries(directory, start), key=lambda entry: entry.name):
            if entry.kind == "other":
                raise _refused_link(within + entry.name)
            if entry.kind == "file" and entry.name >= start:
                yield FileStatus(
                    path=within + entry.name, size=entry.size, modified_ms=entry.modified_ms
                )

    def _scan(self, directory: str, skip: Skip | None) -> Listing:
        from delta_maintenance.storage.core.listing import Listing

        within = f"{directory}/" if directory else ""
        listing = Listing()
        for entry in self._entries(directory):
            path = within + entry.name
            match entry.kind:
                case "file":
                    listing.files.append(path)
                    listing.sizes.append(entry.size)
                    listing.modified.append(entry.modified_ms)
                case "directory" if skip is not None and skip(path):
                    listing.skipped.append(path)
                case "directory":
                    listing.below.append(path)
                    # Its time comes from the listing of its parent; a later listing may show
                    # another time.
                    listing.entered.append(path)
                    listing.times.append(entry.modified_ms)
                case _:
                    listing.others.append(path)
        return listing

    def _entries(self, directory: str, start: str = "") -> list[Entry]:
        try:
            return list(self._tree.entries(directory, start))
        except RequestFailure as failure:
            if failure.missing:
                return []
            permission = self._tree.permissions["list"]
            raise storage_error(failure, permission=permission, file=directory or None) from failure

    def _entry(self, path: str) -> Entry:
        try:
            entry = self._tree.entry(check_path(path))
        except RequestFailure as failure:
            self._fail(failure, path, "read")
        if entry.kind == "other":
            raise _refused_link(path)
        if entry.kind != "file":
            raise _missing(path)
        return entry

    def _get(self, path: str, *, span: tuple[int, int] | None = None) -> bytes:
        try:
            return self._tree.get(path, span=span)
        except RequestFailure as failure:
            self._fail(failure, path, "read")

    def _fail(self, failure: RequestFailure, path: str, right: str) -> NoReturn:
        if failure.missing:
            raise _missing(path) from failure
        permission = self._tree.permissions[right]
        raise storage_error(failure, permission=permission, file=path) from failure


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such file", path)


def _refused_link(path: str) -> RefusedError:
    return RefusedError(
        "a link below a table's root is never followed",
        file=path,
        remedy="put the file itself there, or open the table at the link's target",
    )
