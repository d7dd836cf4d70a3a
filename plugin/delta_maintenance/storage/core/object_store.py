"""A store over objects with literal keys, on top of the requests of one backend."""

from __future__ import annotations

import errno
import io
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, ClassVar, NoReturn, Protocol

from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError, StorageError
from delta_maintenance.rest.failure import RequestFailure, repeated_page, storage_error
from delta_maintenance.rest.usage import Usage
from delta_maintenance.storage.core.base import FileStatus, OldVersions, Put, Store
from delta_maintenance.storage.core.conditional_put import ConditionalPut
from delta_maintenance.storage.core.paths import check_directory, check_path, check_start
from delta_maintenance.storage.core.streams import open_ranges, open_sink

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_maintenance.storage.core.listing import Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStatus:
    """One object as the backend describes it."""

    key: str
    size: int
    """Bytes."""
    modified_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    tag: str = ""
    """Identifies the content: objects with the same key and tag are identical."""
    metadata: Mapping[str, str] | None = None
    """As in `FileStatus`."""
    storage_class: str | None = None
    """As the backend names it in listings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a listing. `next` is the token of the next page, empty on the last one."""

    objects: Sequence[ObjectStatus]
    next: str
    prefixes: Sequence[str] = ()
    """Common prefixes of omitted keys, up to and including the slash."""


class Connections(Protocol):
    """The client of a backend."""

    @property
    def usage(self) -> Usage: ...
    def close(self) -> None: ...


class Bucket(ABC):
    """The objects of one bucket. Every call is one request with retries.

    Keys are literal. All calls raise `RequestFailure`.
    """

    permissions: ClassVar[dict[str, str]]
    """The names that the backend gives the permissions to `read`, `list`, `write` and `delete`."""
    lists_in_order: ClassVar[bool] = False
    """Whether the backend guarantees to list keys in order."""

    def __init__(self, client: Connections) -> None:
        self._client = client

    @property
    def usage(self) -> Usage:
        """The requests that were sent."""
        return self._client.usage

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    @abstractmethod
    def page(self, prefix: str, *, deep: bool, start: str, token: str) -> Page:
        """Lists objects whose key begins with `prefix`.

        Unless `deep`, the rest of the key contains no slash. Keys before `prefix + start` may be
        left out.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectStatus:
        """Describes an object."""

    @abstractmethod
    def get(self, key: str, *, span: tuple[int, int] | None = None, tag: str = "") -> bytes:
        """Reads an object, or the bytes from the first to the last position of `span`, inclusive.

        A failure that is `changed` if `tag` is given and the object has another tag.
        """

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Writes an object and replaces an existing one."""

    @abstractmethod
    def delete(
        self, keys: Sequence[str], *, times: Sequence[int] | None = None
    ) -> dict[str, RequestFailure]:
        """Deletes exactly these objects. Returns the failure for each object that may still exist.

        `times` are their modification times in milliseconds since 1970-01-01 UTC. If the backend
        can compare them, an object with a later time is kept and its failure is `changed`.
        """


class ObjectStore(Store):
    """The objects of a bucket below a prefix.

    A file created as a stream is kept in a local temporary file until its block ends.
    """

    def __init__(
        self,
        address: Address,
        bucket: Bucket,
        prefix: str,
        creator: ConditionalPut,
        old_versions: OldVersions,
        *,
        aliases: Iterable[str] = (),
    ) -> None:
        self.address = address
        self._addresses = tuple(dict.fromkeys((str(address), *aliases)))
        self._bucket = bucket
        self._prefix = prefix
        self._creator = creator
        self._old_versions = old_versions

    @property
    def old_versions(self) -> OldVersions:
        return self._old_versions

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    @property
    def usage(self) -> Usage:
        return self._bucket.usage

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        within = check_directory(directory)
        return self._list(f"{within}/" if within else "", check_start(start))

    def stat(self, path: str) -> FileStatus | None:
        try:
            return self._status(self._head(path))
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes:
        return self._get(path)

    def read_head(self, path: str, size: int) -> bytes:
        try:
            return self._bucket.get(self._key(path), span=(0, size - 1))
        except RequestFailure as failure:
            if failure.out_of_range:
                return b""
            self._fail(failure, path, "read")

    def open(self, path: str) -> BinaryIO:
        status = self._head(path)

        def fetch(first: int, count: int) -> bytes:
            # The tag ensures that all ranges are read from the same object.
            return self._get(path, span=(first, first + count - 1), tag=status.tag)

        return open_ranges(fetch, status.size)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        return self._put_new(path, io.BytesIO(data), len(data))

    def put(self, path: str, data: bytes) -> None:
        try:
            self._bucket.put(self._key(path), data)
        except RequestFailure as failure:
            self._fail(failure, path, "write")

    def put_from(self, path: str, source: BinaryIO) -> None:
        size = source.seek(0, io.SEEK_END)
        if size <= self._creator.multipart_size:
            super().put_from(path, source)
            return
        try:
            self._creator.replace(self._key(path), source, size)
        except RequestFailure as failure:
            self._fail(failure, path, "write")

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        check_path(path)
        with tempfile.TemporaryFile() as spool:
            with open_sink(spool.fileno(), path) as sink:
                yield sink
            size = spool.seek(0, io.SEEK_END)
            if self._put_new(path, spool, size) is Put.EXISTS:
                raise FileExistsError(errno.EEXIST, "another writer's file exists", path)

    def delete(self, path: str) -> None:
        for error in self.delete_many([path]).values():
            raise error

    def delete_many(self, paths: Iterable[str]) -> dict[str, StorageError]:
        return self._delete({self._key(path): path for path in paths})

    def delete_unchanged(self, files: pa.Table) -> dict[str, StorageError]:
        path_of = {self._key(path): path for path in files["path"].to_pylist()}
        return self._delete(path_of, files["modified_ms"].to_pylist())

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        within = check_directory(directory)
        prefix = f"{self._prefix}{within}/" if within else self._prefix
        for page in self._pages(prefix, deep=True):
            yield self._tree(page)

    def list_level(self, directory: str = "") -> pa.Table:
        import pyarrow as pa

        from delta_maintenance.storage.core.listing import TREE, EntryKind, tree_of

        within = check_directory(directory)
        prefix = f"{self._prefix}{within}/" if within else self._prefix
        files = [TREE.empty_table()]
        # A prefix that two pages share is reported on both.
        below: dict[str, None] = {}
        for page in self._pages(prefix):
            files.append(self._tree(page))
            below |= dict.fromkeys(page.prefixes)
        names = [key[len(self._prefix) :].removesuffix("/") for key in below]
        return pa.concat_tables([*files, tree_of(names, EntryKind.DIRECTORY)])

    def list_archived(self, paths: pa.ChunkedArray) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        from delta_maintenance.storage.core.listing import TREE, directories_of

        tables = [TREE.empty_table()]
        for directory in pc.unique(directories_of(paths)).to_pylist():
            for page in self._pages(f"{self._prefix}{directory}/" if directory else self._prefix):
                tree = self._tree(page)
                if tree["archive"].null_count < tree.num_rows:
                    tree = tree.filter(pc.is_valid(tree["archive"]))
                    tables.append(tree.filter(pc.is_in(tree["path"], value_set=paths)))
        return pa.concat_tables(tables)

    def close(self) -> None:
        self._bucket.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store contains credentials and cannot be pickled: open another one")

    def _key(self, path: str) -> str:
        return self._prefix + check_path(path)

    def _tree(self, page: Page) -> pa.Table:
        # Imported here, so that only tree listings load pyarrow.
        from delta_maintenance.storage.core.listing import EntryKind, tree_of

        return tree_of(
            [listed_object.key[len(self._prefix) :] for listed_object in page.objects],
            EntryKind.FILE,
            sizes=[listed_object.size for listed_object in page.objects],
            times=[listed_object.modified_ms for listed_object in page.objects],
            classes=[listed_object.storage_class for listed_object in page.objects],
        )

    def _status(self, status: ObjectStatus) -> FileStatus:
        path = status.key[len(self._prefix) :]
        return FileStatus(
            path=path,
            size=status.size,
            modified_ms=status.modified_ms,
            tag=status.tag,
            metadata=status.metadata,
        )

    def _head(self, path: str) -> ObjectStatus:
        try:
            return self._bucket.head(self._key(path))
        except RequestFailure as failure:
            self._fail(failure, path, "read")

    def _get(self, path: str, *, span: tuple[int, int] | None = None, tag: str = "") -> bytes:
        try:
            return self._bucket.get(self._key(path), span=span, tag=tag)
        except RequestFailure as failure:
            if failure.is_changed and tag:
                raise StorageError(
                    "the file was replaced while it was read", file=path, remedy="run again"
                ) from failure
            self._fail(failure, path, "read")

    def _put_new(self, path: str, source: BinaryIO, size: int) -> Put:
        try:
            return self._creator.put(self._key(path), source, size)
        except DeltaMaintenanceError as error:
            error.locate(file=path)
            raise

    def _list(self, within: str, start: str) -> Iterator[FileStatus]:
        prefix = self._prefix + within
        pages: Iterable[Sequence[ObjectStatus]] = (
            page.objects for page in self._pages(prefix, start=start)
        )
        if not self._bucket.lists_in_order:
            # All pages are read before the first entry is yielded.
            pages = [
                sorted(
                    (listed_object for page in pages for listed_object in page),
                    key=lambda listed_object: listed_object.key,
                )
            ]
        last_name = ""
        for listed_object in (listed_object for page in pages for listed_object in page):
            if listed_object.key < last_name:
                raise StorageError(
                    "the store does not list its keys in order",
                    file=within or None,
                    remedy="move the table to a bucket that does",
                )
            last_name = listed_object.key
            if listed_object.key[len(prefix) :] >= start:
                yield self._status(listed_object)

    def _pages(self, prefix: str, *, deep: bool = False, start: str = "") -> Iterator[Page]:
        """Yields every page of a listing; an error on any page is raised."""
        token = ""
        file = prefix[len(self._prefix) :] or None
        while True:
            try:
                page = self._bucket.page(prefix, deep=deep, start=start, token=token)
            except RequestFailure as failure:
                permission = self._bucket.permissions["list"]
                raise storage_error(failure, permission=permission, file=file) from failure
            # Some consoles create an object with the prefix itself as its key to mark a folder.
            yield replace(
                page,
                objects=[
                    listed_object for listed_object in page.objects if listed_object.key != prefix
                ],
            )
            if not page.next:
                return
            if page.next == token:
                raise repeated_page(file=file)
            token = page.next

    def _delete(
        self, path_of: dict[str, str], times: Sequence[int] | None = None
    ) -> dict[str, StorageError]:
        kept = {}
        failures = self._bucket.delete(list(path_of), times=times) if path_of else {}
        for key, failure in failures.items():
            file = path_of[key]
            if failure.is_changed and times is not None:
                kept[file] = StorageError(
                    "the file was replaced since it was listed", file=file, remedy="run again"
                )
            else:
                permission = self._bucket.permissions["delete"]
                kept[file] = storage_error(failure, permission=permission, file=file)
        return kept

    def _fail(self, failure: RequestFailure, path: str, right: str) -> NoReturn:
        if failure.missing:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path) from failure
        permission = self._bucket.permissions[right]
        raise storage_error(failure, permission=permission, file=path) from failure
