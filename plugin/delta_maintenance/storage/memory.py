"""A store in this process's memory, for tests and for files that only this process needs."""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from delta_maintenance import clock
from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.base import FileStatus, Put, Store
from delta_maintenance.storage.core.paths import check_directory, check_path, check_start

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_maintenance.storage.core.listing import Skip


class MemoryStore(Store):
    """Files in memory, which exist as long as the process.

    Stores opened at `memory://name/path` share the files of `name`; a store without an address has
    its own files. `now_ms` is the time of files written through this store, in milliseconds since
    1970-01-01 UTC, and can be changed at any time.
    """

    tells_old_versions = True

    def __init__(
        self,
        address: Address | None = None,
        *,
        now_ms: Callable[[], int] = lambda: clock.epoch_millis(clock.now()),
    ) -> None:
        self.now_ms = now_ms
        self.storage_classes: dict[str, str] = {}
        """The storage classes of files in listings, by path."""
        if address is None:
            self.address, self._files, self._prefix = Address.parse("memory:"), _Files(), ""
            return
        if address.kind is not StoreKind.MEMORY or not address.authority:
            raise InvalidRequestError(
                f"{address} is not a memory address", remedy="write memory://NAME/PATH"
            )
        self.address = address
        self._prefix = f"{check_directory(address.path)}/" if address.path else ""
        with _NAMED_LOCK:
            self._files = _NAMED.setdefault(address.authority, _Files())

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        within = check_directory(directory)
        return self._list(f"{within}/" if within else "", check_start(start))

    def stat(self, path: str) -> FileStatus | None:
        entry = self._files.entries.get(self._key(path))
        if entry is None:
            return None
        return FileStatus(path=path, size=len(entry.data), modified_ms=entry.modified_ms)

    def read(self, path: str) -> bytes:
        entry = self._files.entries.get(self._key(path))
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
        return entry.data

    def open(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def put_if_absent(self, path: str, data: bytes) -> Put:
        key = self._key(path)
        with self._files.lock:
            if key in self._files.entries:
                return Put.EXISTS
            self._files.entries[key] = _Entry(bytes(data), self.now_ms())
            return Put.DONE

    def put(self, path: str, data: bytes) -> None:
        key = self._key(path)
        with self._files.lock:
            self._files.entries[key] = _Entry(bytes(data), self.now_ms())

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        self._key(path)
        sink = _Sink()
        yield sink
        sink.close()
        if self.put_if_absent(path, sink.written) is Put.EXISTS:
            raise FileExistsError(errno.EEXIST, "another writer's file exists", path)

    def delete(self, path: str) -> None:
        key = self._key(path)
        with self._files.lock:
            self._files.entries.pop(key, None)

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        # Imported here, so that only tree listings load pyarrow.
        from delta_maintenance.storage.core.listing import EntryKind, tree_of

        within = check_directory(directory)
        prefix = f"{self._prefix}{within}/" if within else self._prefix
        with self._files.lock:
            entries = [(key, e) for key, e in self._files.entries.items() if key.startswith(prefix)]
        yield tree_of(
            [key[len(self._prefix) :] for key, _ in entries],
            EntryKind.FILE,
            sizes=[len(entry.data) for _, entry in entries],
            times=[entry.modified_ms for _, entry in entries],
            classes=[self.storage_classes.get(key[len(self._prefix) :]) for key, _ in entries],
        )

    def list_archived(self, paths: pa.ChunkedArray) -> pa.Table:
        import pyarrow.compute as pc

        if not self.storage_classes:
            return super().list_archived(paths)
        (tree,) = self.list_tree()
        tree = tree.filter(pc.is_valid(tree["archive"]))
        return tree.filter(pc.is_in(tree["path"], value_set=paths))

    def _key(self, path: str) -> str:
        return self._prefix + check_path(path)

    def _list(self, within: str, start: str) -> Iterator[FileStatus]:
        prefix = self._prefix + within
        with self._files.lock:
            entries = [
                (key[len(prefix) :], entry)
                for key, entry in self._files.entries.items()
                if key.startswith(prefix)
            ]
        for name, entry in sorted(entries, key=lambda pair: pair[0]):
            if "/" not in name and name >= start:
                yield FileStatus(
                    path=within + name, size=len(entry.data), modified_ms=entry.modified_ms
                )


class _Entry:
    __slots__ = ("data", "modified_ms")

    def __init__(self, data: bytes, modified_ms: int) -> None:
        self.data = data
        self.modified_ms = modified_ms


class _Files:
    """The files that all stores of one name share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[str, _Entry] = {}


class _Sink(io.BytesIO):
    """Saves the written bytes when the stream is closed."""

    written = b""

    def close(self) -> None:
        if not self.closed:
            self.written = self.getvalue()
        super().close()


_NAMED: dict[str, _Files] = {}
_NAMED_LOCK = threading.Lock()
