"""A store on Amazon S3, or on a server that speaks its protocol with conditional writes."""

from __future__ import annotations

import errno
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError, StorageError
from delta_maintenance.storage.base import FileStatus, Put, Store
from delta_maintenance.storage.paths import check_directory, check_path, check_start
from delta_maintenance.storage.ranged_reader import open_ranges
from delta_maintenance.storage.request_failure import storage_error
from delta_maintenance.storage.s3_client import Reply, S3Client, S3Failure
from delta_maintenance.storage.s3_options import S3Options
from delta_maintenance.storage.s3_put import S3Put
from delta_maintenance.storage.sinks import open_sink

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_maintenance.storage.tree import Skip


class S3Store(Store):
    """The objects below `s3://BUCKET/PREFIX`; `s3a:` and `s3n:` mean the same.

    Keys are literal. A file created as a stream is kept in a local temporary file until its block
    ends; one larger than `multipart_size` bytes goes up in parts of `part_size` bytes, which S3
    wants to be 5 MiB at least.
    """

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        client: S3Client | None = None,
        new_id: clock.NewId = clock.new_id,
        multipart_size: int = 64 << 20,
        part_size: int = 16 << 20,
    ) -> None:
        self.root = root.rstrip("/")
        self._bucket, self._prefix = _parse_address(self.root)
        self._client = client or S3Client(S3Options.parse(storage_options))
        self._conditional = S3Put(
            self._client,
            self._bucket,
            new_id=new_id,
            multipart_size=multipart_size,
            part_size=part_size,
        )

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        within = check_directory(directory)
        return self._list(f"{within}/" if within else "", check_start(start))

    def stat(self, path: str) -> FileStatus | None:
        try:
            head = self._head(path)
        except FileNotFoundError:
            return None
        return _status(path, head["ContentLength"], head["LastModified"])

    def read(self, path: str) -> bytes:
        data: bytes = self._get(path)["Body"]
        return data

    def open(self, path: str) -> BinaryIO:
        head = self._head(path)

        def fetch(first: int, count: int) -> bytes:
            # The tag keeps all ranges of one file to the same bytes.
            span = f"bytes={first}-{first + count - 1}"
            data: bytes = self._get(path, Range=span, IfMatch=head["ETag"])["Body"]
            return data

        return open_ranges(fetch, head["ContentLength"])

    def put_if_absent(self, path: str, data: bytes) -> Put:
        return self._put_new(path, io.BytesIO(data), len(data))

    def put(self, path: str, data: bytes) -> None:
        try:
            self._call("put_object", path, Body=data)
        except S3Failure as failure:
            _fail(failure, path, "s3:PutObject")

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
        keys = list(path_of)
        kept: dict[str, StorageError] = {}
        for first in range(0, len(keys), _KEYS_PER_DELETE):
            for key, failure in self._delete(keys[first : first + _KEYS_PER_DELETE]).items():
                file = path_of[key]
                kept[file] = storage_error(failure, permission="s3:DeleteObject", file=file)
        return kept

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        within = check_directory(directory)
        prefix = f"{self._prefix}{within}/" if within else self._prefix
        for page in self._pages({"Bucket": self._bucket, "Prefix": prefix}, within):
            yield self._tree(page, prefix)

    def list_level(self, directory: str = "") -> pa.Table:
        # Here as below: who lists no tree need not load pyarrow.
        import pyarrow as pa

        from delta_maintenance.storage.tree import TREE, EntryKind, tree_of

        within = check_directory(directory)
        prefix = f"{self._prefix}{within}/" if within else self._prefix
        request = {"Bucket": self._bucket, "Prefix": prefix, "Delimiter": "/"}
        found = [TREE.empty_table()]
        for page in self._pages(request, within):
            below = [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
            names = [key[len(self._prefix) :].removesuffix("/") for key in below]
            found += [self._tree(page, prefix), tree_of(names, EntryKind.DIRECTORY)]
        return pa.concat_tables(found)

    def _tree(self, page: Reply, prefix: str) -> pa.Table:
        from delta_maintenance.storage.tree import EntryKind, tree_of

        # The key that is the prefix itself marks a folder in some consoles.
        entries = [entry for entry in page.get("Contents", ()) if entry["Key"] != prefix]
        return tree_of(
            [entry["Key"][len(self._prefix) :] for entry in entries],
            EntryKind.FILE,
            sizes=[entry["Size"] for entry in entries],
            times=[clock.epoch_millis(entry["LastModified"]) for entry in entries],
        )

    def close(self) -> None:
        self._client.close()

    def _key(self, path: str) -> str:
        return self._prefix + check_path(path)

    def _call(self, method: str, path: str, **parameters: Any) -> Reply:
        return self._client.call(method, Bucket=self._bucket, Key=self._key(path), **parameters)

    def _head(self, path: str) -> Reply:
        try:
            return self._call("head_object", path)
        except S3Failure as failure:
            # Without the right to list, S3 says "forbidden" where there is nothing.
            _fail(failure, path, "s3:GetObject and s3:ListBucket")

    def _get(self, path: str, **parameters: Any) -> Reply:
        try:
            return self._call("get_object", path, **parameters)
        except S3Failure as failure:
            if failure.refuted:
                raise StorageError(
                    "the file was replaced while it was read", file=path, remedy="run again"
                ) from failure
            _fail(failure, path, "s3:GetObject")

    def _put_new(self, path: str, source: BinaryIO, size: int) -> Put:
        try:
            return self._conditional.put(self._key(path), source, size)
        except DeltaMaintenanceError as error:
            error.located(file=path)
            raise

    def _list(self, within: str, start: str) -> Iterator[FileStatus]:
        prefix = self._prefix + within
        request = {"Bucket": self._bucket, "Prefix": prefix, "Delimiter": "/"}
        if start:
            request["StartAfter"] = prefix + _just_before(start)
        last = ""
        for page in self._pages(request, within):
            for entry in page.get("Contents", ()):
                name = entry["Key"][len(prefix) :]
                if name < last:
                    raise StorageError(
                        "the store does not list its keys in order",
                        file=within or None,
                        remedy="move the table to a general purpose bucket",
                    )
                last = name
                # The key that is the prefix itself marks a folder in some consoles.
                if name and name >= start:
                    yield _status(within + name, entry["Size"], entry["LastModified"])

    def _pages(self, request: dict[str, str], within: str) -> Iterator[Reply]:
        """Every page of a listing, or an error."""
        while True:
            try:
                page = self._client.call("list_objects_v2", **request)
            except S3Failure as failure:
                raise storage_error(
                    failure, permission="s3:ListBucket", file=within or None
                ) from failure
            yield page
            if not page["IsTruncated"]:
                return
            request = {**request, "ContinuationToken": page["NextContinuationToken"]}

    def _delete(self, keys: list[str]) -> dict[str, S3Failure]:
        """Deletes exactly these keys. Returns those that S3 did not confirm."""
        try:
            answer = self._client.call(
                "delete_objects",
                Bucket=self._bucket,
                # Not quiet: a key that is neither deleted nor an error was overlooked.
                Delete={"Objects": [{"Key": key} for key in keys], "Quiet": False},
            )
        except S3Failure as failure:
            return dict.fromkeys(keys, failure)
        gone = {entry.get("Key") for entry in answer.get("Deleted", ())}
        said = {entry.get("Key"): entry for entry in answer.get("Errors", ())}
        kept = {}
        for key in keys:
            code = said.get(key, {}).get("Code", "NotConfirmed")
            if key not in gone and code != "NoSuchKey":
                message = said.get(key, {}).get("Message", "")
                kept[key] = S3Failure(status=200, code=code, said=message)
        return kept


def _parse_address(root: str) -> tuple[str, str]:
    """The bucket, and the prefix of every key below the root."""
    scheme, _, rest = root.partition("://")
    bucket, _, directory = rest.partition("/")
    if scheme not in ("s3", "s3a", "s3n") or not _BUCKET.fullmatch(bucket):
        # The address is not repeated: a malformed one may hold a password.
        raise InvalidRequestError(
            "the address is not of the form s3://BUCKET/PATH",
            remedy="correct it; credentials go into storage options",
        )
    return bucket, f"{check_directory(directory)}/" if directory else ""


def _just_before(start: str) -> str:
    """A text below `start` that leaves no name of a log in between.

    S3 starts after a key, never at it. What does lie in between is left out by the caller.
    """
    head, last = start[:-1], start[-1]
    return f"{head}{chr(ord(last) - 1)}~" if "!" < last <= "~" else head


def _status(path: str, size: int, modified: datetime) -> FileStatus:
    return FileStatus(path=path, size=size, modified_ms=clock.epoch_millis(modified))


def _fail(failure: S3Failure, path: str, permission: str) -> NoReturn:
    if failure.missing:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", path) from failure
    raise storage_error(failure, permission=permission, file=path) from failure


_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_KEYS_PER_DELETE = 1000
