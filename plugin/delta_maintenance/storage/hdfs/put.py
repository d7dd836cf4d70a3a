"""Conditional puts on HDFS: write a temporary file, then rename it without overwriting."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO

from delta_maintenance import clock
from delta_maintenance.rest.failure import patiently
from delta_maintenance.storage.core.conditional_put import ConditionalPut, Creation
from delta_maintenance.storage.hdfs.client import HdfsClient, HdfsFailure


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
        found = self._client.status(key)
        staged = self._staged.get(put_id)
        mine = staged is not None and staged.tag == found.tag
        if mine and staged is not None and not self._client.has_inodes:
            mine = self._is_missing(staged.names[-1])
        return Creation(put_id=put_id if mine else "another", size=found.size)

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
        found = self._client.status(temporary)
        if found.size != size:
            raise HdfsFailure(
                status=500, code="Incomplete", detail="the server did not store all bytes"
            )
        staged.tag = found.tag

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
