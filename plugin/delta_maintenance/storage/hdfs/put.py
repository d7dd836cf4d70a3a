"""Conditional puts on HDFS: a file of another name, and a rename that replaces nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO

from delta_maintenance import clock
from delta_maintenance.storage.core.conditional_put import ConditionalPut, Creation
from delta_maintenance.storage.core.request_failure import patiently
from delta_maintenance.storage.hdfs.client import HdfsClient, HdfsFailure


class HdfsPut(ConditionalPut):
    """Puts files into one file system if their names are free.

    A file that is created under its own name exists before its first byte, and remains, empty or
    partial, if its writer or a data node dies. So the bytes go to `.NAME.ID.tmp` beside it. Once
    they are complete and synced, the name node decides by a rename without `OVERWRITE`, which it
    makes and logs in one step. The file keeps its inode, by which its writer recognises it. If the
    client is not told inodes, the writer compares size, time of modification and owner, and
    requires that the temporary file is gone, because only the rename takes it away.
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
        # A gateway (HttpFS) ignores the options of a rename. The rename of a file that does not
        # exist tells them apart: without options it is no error. It changes nothing.
        probe = self._temporary(key)
        rename = partial(self._client.rename, probe, f"{probe}.2", replace=False)
        try:
            patiently(rename, self._client.sleep, self._client.pauses)
        except HdfsFailure as failure:
            if failure.missing:
                return True
            raise
        raise HdfsFailure(
            status=501, code="NoRenameOptions", said="a gateway answers for the name node"
        )

    def stage(self, key: str, source: BinaryIO, size: int, put_id: str) -> Callable[[], object]:
        # Only once, so that a delayed rename finds the file that it is meant for.
        staged = self._staged.setdefault(put_id, _Staged())
        if not staged.tag:
            self._upload(key, source, size, staged)
        return partial(self._publish, staged, key)

    def creation(self, key: str, put_id: str) -> Creation:
        found = self._client.status(key)
        staged = self._staged.get(put_id)
        mine = staged is not None and staged.tag == found.tag
        if mine and staged is not None and not self._client.has_inodes:
            mine = self._is_gone(staged.names[-1])
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

    def replace(self, key: str, data: bytes) -> None:
        """Writes a complete file, replacing an existing one. `HdfsFailure` if that fails."""
        staged = _Staged()
        try:
            self._upload(key, io.BytesIO(data), len(data), staged)
            rename = partial(self._client.rename, staged.names[-1], key, replace=True)
            try:
                patiently(rename, self._client.sleep, self._client.pauses)
            except HdfsFailure as failure:
                # After a lost answer there is nothing left to rename.
                if not failure.missing:
                    raise
            staged.published = True
        finally:
            self._discard(staged)

    def _upload(self, key: str, source: BinaryIO, size: int, staged: _Staged) -> None:
        """Writes a temporary file. It is complete and closed when this returns."""

        def once() -> str:
            # A new name each time, so that a delayed request cannot change another file.
            temporary = self._temporary(key)
            staged.names.append(temporary)
            source.seek(0)
            try:
                self._client.upload(temporary, source, size)
            except HdfsFailure as failure:
                if failure.code == "IOException":
                    # No data node accepts the bytes at the moment.
                    raise HdfsFailure(
                        status=503, code="IOException", said=str(failure)
                    ) from failure
                raise
            return temporary

        temporary = patiently(once, self._client.sleep, self._client.pauses)
        found = self._client.status(temporary)
        if found.size != size:
            raise HdfsFailure(status=500, code="Incomplete", said="not all bytes were kept")
        staged.tag = found.tag

    def _publish(self, staged: _Staged, key: str) -> None:
        try:
            self._client.rename(staged.names[-1], key, replace=False)
        except HdfsFailure as failure:
            if failure.missing:
                # An earlier attempt may have renamed it.
                raise HdfsFailure(
                    status=403, code="FileAlreadyExistsException", said=str(failure)
                ) from failure
            raise
        staged.published = True

    def _is_gone(self, path: str) -> bool:
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
    """Of its temporary files, the complete one last."""
    tag: str = ""
    """Of the complete one; empty before there is one."""
    published: bool = False
    """Whether the complete one has certainly got its own name."""
