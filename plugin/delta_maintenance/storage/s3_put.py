"""Creating an object on S3 exactly once, and finding out who created it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

from delta_maintenance import clock
from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError, RefusedError
from delta_maintenance.storage.base import Put
from delta_maintenance.storage.s3_client import PAUSES, S3Client, S3Failure, storage_error


class ConditionalPut:
    """Puts objects into one bucket if their keys are free.

    Every object carries an id of the one call that made it, so that an answer lost on the way is
    settled by looking whose object is there. A server that is not Amazon's first shows, on an
    object of its own that is deleted again, that it honours the condition: one that ignores it
    would let two writers commit the same version.
    """

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        *,
        new_id: clock.NewId,
        multipart_size: int,
        part_size: int,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._new_id = new_id
        self._multipart_size = multipart_size
        self._part_size = part_size
        self._probing = threading.Lock()
        self._honours_conditions = False

    def put(self, key: str, source: BinaryIO, size: int) -> Put:
        """Creates one object of `size` bytes from the seekable `source`.

        `RefusedError` where the server has no conditional put, `CommitUnknownError` where the
        outcome cannot be found out, `StorageError` where certainly nothing was written.
        """
        self._require_conditions(key)
        put_id = self._new_id()
        doubt: S3Failure | None = None
        for pause in (*PAUSES, None):
            try:
                publish = self._stage(key, source, size, put_id)
            except S3Failure as failure:
                cause = failure
                break
            try:
                publish()
                return Put.DONE
            except S3Failure as failure:
                cause = failure
            # A refuted condition is a doubt like no answer at all: after a lost answer the HTTP
            # client sends the request again by itself, and then meets the object of the first.
            if cause.refuted or cause.unanswered:
                outcome = self._whose(key, source, size, put_id)
                if outcome is not None:
                    return outcome
                doubt = cause
            if cause.refuted or not (cause.unanswered or cause.conflict):
                # An object that was there and cannot be seen now may be a version that others have
                # read and cleaned up: sending it again could bring it back.
                break
            if pause is not None:
                self._client.sleep(pause)
        if doubt is not None:
            raise CommitUnknownError(
                f"whether the object was written could not be found out ({doubt})",
                remedy="look whether it is there before running again",
            ) from cause
        raise _put_error(cause) from cause

    def _stage(self, key: str, source: BinaryIO, size: int, put_id: str) -> Callable[[], object]:
        """Makes everything ready. Returns the one request that publishes the object."""
        target = {"Bucket": self._bucket, "Key": key}
        metadata = {_PUT_ID: put_id}
        source.seek(0)
        if size <= self._multipart_size:
            return partial(
                self._client.send,
                "put_object",
                **target,
                Body=source.read(),
                Metadata=metadata,
                IfNoneMatch="*",
            )
        upload = self._client.call("create_multipart_upload", **target, Metadata=metadata)
        target["UploadId"] = upload["UploadId"]
        with self._aborting(target):
            parts = []
            part_size = max(self._part_size, -(-size // _MAX_PARTS))
            for number, body in enumerate(iter(partial(source.read, part_size), b""), start=1):
                part = self._client.call("upload_part", **target, PartNumber=number, Body=body)
                parts.append({"PartNumber": number, "ETag": part["ETag"]})
        return partial(self._complete, target, parts)

    def _complete(self, target: dict[str, str], parts: list[dict[str, Any]]) -> None:
        with self._aborting(target):
            self._client.send(
                "complete_multipart_upload",
                **target,
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )

    @contextmanager
    def _aborting(self, target: dict[str, str]) -> Iterator[None]:
        """Gives up an upload that fails; what even that leaves, the bucket's lifecycle removes."""
        try:
            yield
        except BaseException:
            with suppress(S3Failure):
                self._client.send("abort_multipart_upload", **target)
            raise

    def _whose(self, key: str, source: BinaryIO, size: int, put_id: str) -> Put | None:
        """Whether the object there is the one of this call; None where there is none to be seen."""
        target = {"Bucket": self._bucket, "Key": key}
        try:
            head = self._client.call("head_object", **target)
            found = head.get("Metadata", {}).get(_PUT_ID)
            if found is not None:
                return Put.DONE if found == put_id else Put.EXISTS
            # Another writer's, or ours on a server that keeps no metadata.
            if head["ContentLength"] != size:
                return Put.EXISTS
            source.seek(0)
            for first in range(0, size, self._part_size):
                mine = source.read(self._part_size)
                span = f"bytes={first}-{first + len(mine) - 1}"
                if self._client.call("get_object", **target, Range=span)["Body"] != mine:
                    return Put.EXISTS
            return Put.DONE
        except S3Failure:
            return None

    def _require_conditions(self, key: str) -> None:
        """`RefusedError` unless the server is known to honour If-None-Match."""
        with self._probing:
            if self._honours_conditions:
                return
            try:
                if not self._client.is_aws:
                    self._probe(key)
            except S3Failure as failure:
                raise _put_error(failure) from failure
            self._honours_conditions = True

    def _probe(self, key: str) -> None:
        directory, slash, _ = key.rpartition("/")
        target = {"Bucket": self._bucket, "Key": f"{directory}{slash}.{self._new_id()}.probe"}
        try:
            for _ in range(2):
                self._client.call("put_object", **target, Body=b"probe", IfNoneMatch="*")
        except S3Failure as failure:
            if not failure.refuted:
                raise
        else:
            raise _no_conditions("it overwrites an object that must not be there")
        finally:
            # Not every writer may delete; what stays is one small hidden object.
            with suppress(S3Failure):
                self._client.call("delete_object", **target)


def _put_error(failure: S3Failure) -> DeltaMaintenanceError:
    if failure.unsupported:
        return _no_conditions(str(failure))
    return storage_error(failure, permission="s3:PutObject")


def _no_conditions(evidence: str) -> RefusedError:
    return RefusedError(
        f"the store has no conditional put ({evidence}), so a commit there could overwrite "
        "another one",
        remedy="use a store and a botocore that honour If-None-Match, or commit through Spark",
    )


_PUT_ID = "delta-maintenance-put-id"
_MAX_PARTS = 10_000
