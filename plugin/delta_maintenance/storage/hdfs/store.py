"""A store on HDFS."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError, StorageError
from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently, storage_error
from delta_maintenance.storage.core.base import Put
from delta_maintenance.storage.core.conditional_put import ConditionalPut, Creation
from delta_maintenance.storage.core.directory_store import DirectoryStore, Entry, FileTree
from delta_maintenance.storage.core.paths import check_path, just_before
from delta_maintenance.storage.core.streams import open_sink
from delta_maintenance.storage.hdfs.client import HdfsClient, HdfsFailure
from delta_maintenance.storage.hdfs.options import NativeOptions, WebHdfsOptions, parse_options

if TYPE_CHECKING:
    pass


class HdfsPut(ConditionalPut):
    """Puts files into one file system if their names are free.

    A file that is created under its final name is visible before its first byte, and remains empty
    or partial if its writer or a data node dies. So the bytes are written to `.NAME.ID.tmp` in the
    same directory. When they are complete and synced, a rename without `OVERWRITE` publishes the
    file, which the name node performs and logs atomically.

    The file keeps its inode number, by which the writer recognises it. If the client does not get
    inode numbers, the writer compares size, modification time and owner, and requires that the
    temporary file no longer exists, because only the rename removes it.
    """

    permission = "w and x on the directory"

    def __init__(self, client: HdfsClient, *, new_id: clock.NewId) -> None:
        super().__init__(
            sleep=client.sleep, new_id=new_id, multipart_size=1 << 62, part_size=16 << 20
        )
        self._client = client
        self._ids = new_id
        self._staged: dict[str, _Staged] = {}

    def is_trusted(self, key: str) -> bool:
        # A gateway (HttpFS) ignores the options of a rename. Renaming a file that does not exist
        # detects that without changing anything: it is an error only if options are honoured.
        probe = self._temporary(key)
        rename = partial(self._client.rename, probe, f"{probe}.2", replace=False)
        try:
            patiently(rename, self._client.sleep, self._client.pauses)
        except HdfsFailure as failure:
            if failure.missing:
                return True
            raise
        raise HdfsFailure(
            status=501, code="NoRenameOptions", detail="a gateway answers for the name node"
        )

    def stage(
        self, key: str, source: BinaryIO, size: int, put_id: str, *, replaces: bool = False
    ) -> Callable[[], object]:
        # Staged only once, so that a delayed rename request still finds its file.
        staged = self._staged.setdefault(put_id, _Staged())
        if not staged.tag:
            self._upload(key, source, size, staged)
        return partial(self._publish, staged, key)

    def creation(self, key: str, put_id: str) -> Creation:
        entry = self._client.status(key)
        staged = self._staged.get(put_id)
        mine = staged is not None and staged.tag == entry.tag
        if mine and staged is not None and not self._client.has_inodes:
            mine = self._is_missing(staged.names[-1])
        return Creation(put_id=put_id if mine else "another", size=entry.size)

    def part(self, key: str, first: int, count: int) -> bytes:
        return self._client.read(key, offset=first, length=count)

    def put_probe(self, key: str) -> None:
        raise AssertionError("a name node needs no probe")

    def delete_probe(self, key: str) -> None:
        raise AssertionError("a name node needs no probe")

    def discard(self, key: str, put_id: str) -> None:
        staged = self._staged.pop(put_id, None)
        if staged is not None:
            self._discard(staged)

    def replace(self, key: str, source: BinaryIO, size: int) -> None:
        staged = _Staged()
        try:
            self._upload(key, source, size, staged)
            rename = partial(self._client.rename, staged.names[-1], key, replace=True)
            try:
                patiently(rename, self._client.sleep, self._client.pauses)
            except HdfsFailure as failure:
                # After a lost answer, the rename may already have been done.
                if not failure.missing:
                    raise
            staged.published = True
        finally:
            self._discard(staged)

    def _upload(self, key: str, source: BinaryIO, size: int, staged: _Staged) -> None:
        """Writes a temporary file, which is complete and closed when this returns."""

        def once() -> str:
            # Every attempt uses a new name, so that a delayed request cannot change another file.
            temporary = self._temporary(key)
            staged.names.append(temporary)
            source.seek(0)
            try:
                self._client.upload(temporary, source, size)
            except HdfsFailure as failure:
                if failure.code == "IOException":
                    # At the moment, no data node accepts the bytes.
                    raise HdfsFailure(
                        status=503, code="IOException", detail=str(failure)
                    ) from failure
                raise
            return temporary

        # A data node that stalls takes all the time of an attempt; the next one often gets another
        # node.
        temporary = patiently(once, self._client.sleep, self._client.pauses, attempts=2)
        entry = self._client.status(temporary)
        if entry.size != size:
            raise HdfsFailure(
                status=500, code="Incomplete", detail="the server did not store all bytes"
            )
        staged.tag = entry.tag

    def _publish(self, staged: _Staged, key: str) -> None:
        try:
            self._client.rename(staged.names[-1], key, replace=False)
        except HdfsFailure as failure:
            if failure.missing:
                # An earlier attempt may have renamed it.
                raise HdfsFailure(
                    status=403, code="FileAlreadyExistsException", detail=str(failure)
                ) from failure
            raise
        staged.published = True

    def _is_missing(self, path: str) -> bool:
        try:
            self._client.status(path)
        except HdfsFailure as failure:
            if failure.missing:
                return True
            raise
        return False

    def _discard(self, staged: _Staged) -> None:
        for name in staged.names[:-1] if staged.published else staged.names:
            with suppress(HdfsFailure):
                self._client.delete(name)

    def _temporary(self, key: str) -> str:
        directory, _, name = key.rpartition("/")
        return f"{directory}/.{name}.{self._ids()}.tmp"


@dataclass(slots=True)
class _Staged:
    """The files that one call has written so far."""

    names: list[str] = field(default_factory=list)
    """The names of its temporary files, the complete one last."""
    tag: str = ""
    """The tag of the complete file; empty while there is none."""
    published: bool = False
    """Whether the complete file is known to have its final name."""


def open_client(
    options: NativeOptions | WebHdfsOptions, *, pauses: Sequence[float] = PAUSES
) -> HdfsClient:
    """Opens a client for the name node's RPC protocol, or for its REST interface.

    `InvalidRequestError` if a package is missing. `pauses` are the seconds to wait before each
    further attempt of a call.
    """
    # Imported on demand, because they need different packages.
    if isinstance(options, NativeOptions):
        from delta_maintenance.storage.hdfs.native_client import NativeClient

        return NativeClient(options, pauses=pauses)
    from delta_maintenance.storage.hdfs.webhdfs_client import WebHdfsClient

    return WebHdfsClient(options, pauses=pauses)


class HdfsStore(DirectoryStore):
    """The files below `hdfs://HOST:PORT/PATH`, or `webhdfs:` and `swebhdfs:` for REST.

    A file that is being written is named `.NAME.ID.tmp`, in its final directory; if its writer is
    killed, the remaining file is never mistaken for the final one. HDFS does not allow colons in
    names.
    """

    def __init__(
        self,
        address: Address,
        storage_options: Mapping[str, str] | None = None,
        *,
        client: HdfsClient | None = None,
        new_id: clock.NewId = clock.new_id,
    ) -> None:
        if client is None:
            client = open_client(parse_options(address, storage_options, os.environ))
        folder = f"/{address.path}".rstrip("/")
        # Names that the log of another engine may use for the root; name nodes are not compared.
        aliases = (f"hdfs:{folder}", folder) if folder else ()
        super().__init__(address, _HdfsTree(client, folder), aliases=aliases)
        self._client = client
        self._folder = folder
        self._creator = HdfsPut(client, new_id=new_id)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        return self._put_new(path, io.BytesIO(data), len(data))

    def put(self, path: str, data: bytes) -> None:
        self.put_from(path, io.BytesIO(data))

    def put_from(self, path: str, source: BinaryIO) -> None:
        key = self._key(path)
        try:
            self._creator.replace(key, source, source.seek(0, io.SEEK_END))
        except RequestFailure as failure:
            self._fail(failure, path, "write")

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        self._key(path)
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
        checked = [check_path(path) for path in paths]
        if len(checked) < 2:
            failures = list(map(self._delete, checked))
        else:
            with ThreadPoolExecutor(self.parallel_reads) as pool:
                failures = list(pool.map(self._delete, checked))
        return {
            path: storage_error(failure, permission=_HdfsTree.permissions["delete"], file=path)
            for path, failure in zip(checked, failures, strict=True)
            if failure is not None
        }

    def remove_empty_directory(self, path: str) -> bool:
        check_path(path)
        try:
            if self._tree.entry(path).kind != "directory":
                return False
            self._patiently_delete(path)
        except HdfsFailure as failure:
            if failure.has_content:
                return False
            if not failure.missing:
                raise storage_error(
                    failure, permission=_HdfsTree.permissions["delete"], file=path
                ) from failure
        return True

    def _key(self, path: str) -> str:
        if ":" in check_path(path):
            raise InvalidRequestError(
                "HDFS allows no colon in a name", file=path, remedy="choose another name"
            )
        return f"{self._folder}/{path}"

    def _put_new(self, path: str, source: BinaryIO, size: int) -> Put:
        key = self._key(path)
        try:
            return self._creator.put(key, source, size)
        except DeltaMaintenanceError as error:
            error.locate(file=path)
            raise

    def _delete(self, path: str) -> RequestFailure | None:
        if ":" in path:
            return None
        try:
            self._patiently_delete(path)
        except RequestFailure as failure:
            return None if failure.missing else failure
        return None

    def _patiently_delete(self, path: str) -> None:
        delete = partial(self._client.delete, f"{self._folder}/{path}")
        patiently(delete, self._client.sleep, self._client.pauses)


class _HdfsTree(FileTree):
    permissions = {
        "read": "r on the file and x on its directories",
        "list": "r and x on the directory",
        "write": "w and x on the directory",
        "delete": "w and x on the directory",
    }

    def __init__(self, client: HdfsClient, folder: str) -> None:
        self._client = client
        self._folder = folder

    def entries(self, directory: str, start: str = "") -> Iterable[Entry]:
        return self._client.entries(self._path(directory), just_before(start) if start else "")

    def entry(self, path: str) -> Entry:
        return self._client.status(self._path(path))

    def get(self, path: str, *, span: tuple[int, int] | None = None) -> bytes:
        offset, count = span or (0, None)
        return self._client.read(self._path(path), offset=offset, length=count)

    def close(self) -> None:
        self._client.close()

    def _path(self, path: str) -> str:
        if ":" in path:
            raise HdfsFailure(status=404, code="FileNotFoundException", detail="")
        return f"{self._folder}/{path}" if path else self._folder or "/"
