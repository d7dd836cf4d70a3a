"""The files of a table as objects with literal keys, over the requests of one backend."""

from __future__ import annotations

import errno
import io
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, NoReturn

from delta_maintenance.errors import DeltaMaintenanceError, StorageError
from delta_maintenance.storage.base import FileStatus, Put, Store
from delta_maintenance.storage.conditional_put import ConditionalPut
from delta_maintenance.storage.paths import check_directory, check_path, check_start
from delta_maintenance.storage.ranged_reader import open_ranges
from delta_maintenance.storage.request_failure import RequestFailure, storage_error
from delta_maintenance.storage.sinks import open_sink


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStatus:
    """One object as the backend describes it."""

    key: str
    size: int
    """Bytes."""
    modified_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    tag: str = ""
    """Names these bytes: an object of the same key and tag is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a listing. `next` is the token of the next part, empty for the last."""

    objects: Sequence[ObjectStatus]
    next: str


class Bucket(ABC):
    """The objects of one bucket. Every call is one request, patiently repeated.

    Keys are literal. All calls raise `RequestFailure`.
    """

    permissions: ClassVar[dict[str, str]]
    """What the backend calls the right to `read`, `list`, `write` and `delete`."""

    @abstractmethod
    def page(self, prefix: str, *, start: str, token: str) -> Page:
        """Objects whose key is `prefix` and a name without slash, those before `prefix + start`
        left out where the backend can; in no order that may be relied on."""

    @abstractmethod
    def head(self, key: str) -> ObjectStatus:
        """Describes an object."""

    @abstractmethod
    def get(self, key: str, *, span: tuple[int, int] | None = None, tag: str = "") -> bytes:
        """An object, or the `span` of it from one byte to another, the last included.

        A failure that is `refuted` where a `tag` is given and is not that of the object.
        """

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Writes an object, replacing an existing one."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> dict[str, RequestFailure]:
        """Deletes exactly these objects. Returns what keeps each that may still be there."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections."""


class ObjectStore(Store):
    """The objects of a bucket below a prefix.

    A file created as a stream is kept in a local temporary file until its block ends.
    """

    def __init__(self, root: str, bucket: Bucket, prefix: str, creator: ConditionalPut) -> None:
        self.root = root
        self._bucket = bucket
        self._prefix = prefix
        self._creator = creator

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

    def open(self, path: str) -> BinaryIO:
        found = self._head(path)

        def fetch(first: int, count: int) -> bytes:
            # The tag keeps all ranges of one file to the same bytes.
            return self._get(path, span=(first, first + count - 1), tag=found.tag)

        return open_ranges(fetch, found.size)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        return self._put_new(path, io.BytesIO(data), len(data))

    def put(self, path: str, data: bytes) -> None:
        try:
            self._bucket.put(self._key(path), data)
        except RequestFailure as failure:
            self._fail(failure, path, "write")

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        check_path(path)
        with tempfile.TemporaryFile() as spool:
            with open_sink(spool.fileno()) as sink:
                yield sink
            size = spool.seek(0, io.SEEK_END)
            if self._put_new(path, spool, size) is Put.EXISTS:
                raise FileExistsError(errno.EEXIST, "somebody else's file is there", path)

    def delete(self, path: str) -> None:
        for error in self.delete_many([path]).values():
            raise error

    def delete_many(self, paths: Iterable[str]) -> dict[str, StorageError]:
        path_of = {self._key(path): path for path in paths}
        kept = self._bucket.delete(list(path_of)) if path_of else {}
        return {
            path_of[key]: storage_error(
                failure, permission=self._bucket.permissions["delete"], file=path_of[key]
            )
            for key, failure in kept.items()
        }

    def close(self) -> None:
        self._bucket.close()

    def _key(self, path: str) -> str:
        return self._prefix + check_path(path)

    def _status(self, found: ObjectStatus) -> FileStatus:
        path = found.key[len(self._prefix) :]
        return FileStatus(path=path, size=found.size, modified_ms=found.modified_ms)

    def _head(self, path: str) -> ObjectStatus:
        try:
            return self._bucket.head(self._key(path))
        except RequestFailure as failure:
            self._fail(failure, path, "read")

    def _get(self, path: str, *, span: tuple[int, int] | None = None, tag: str = "") -> bytes:
        try:
            return self._bucket.get(self._key(path), span=span, tag=tag)
        except RequestFailure as failure:
            if failure.refuted and tag:
                raise StorageError(
                    "the file was replaced while it was read", file=path, remedy="run again"
                ) from failure
            self._fail(failure, path, "read")

    def _put_new(self, path: str, source: BinaryIO, size: int) -> Put:
        try:
            return self._creator.put(self._key(path), source, size)
        except DeltaMaintenanceError as error:
            error.located(file=path)
            raise

    def _list(self, within: str, start: str) -> Iterator[FileStatus]:
        prefix = self._prefix + within
        # In full before the first is given: of two backends one promises no order.
        found: list[ObjectStatus] = []
        token = ""
        while True:
            try:
                page = self._bucket.page(prefix, start=start, token=token)
            except RequestFailure as failure:
                raise storage_error(
                    failure, permission=self._bucket.permissions["list"], file=within or None
                ) from failure
            # The key that is the prefix itself marks a folder in some consoles.
            found += (one for one in page.objects if one.key != prefix)
            if not page.next:
                break
            if page.next == token:
                raise StorageError("the store repeats a page of its listing", file=within or None)
            token = page.next
        for one in sorted(found, key=lambda one: one.key):
            if one.key[len(prefix) :] >= start:
                yield self._status(one)

    def _fail(self, failure: RequestFailure, path: str, right: str) -> NoReturn:
        if failure.missing:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path) from failure
        permission = self._bucket.permissions[right]
        raise storage_error(failure, permission=permission, file=path) from failure
