"""Conditional puts on S3, in one request or in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

from delta_maintenance import clock
from delta_maintenance.storage.core.conditional_put import ConditionalPut, Creation
from delta_maintenance.storage.s3.client import S3Client, S3Failure


class S3Put(ConditionalPut):
    """Puts objects into one bucket with If-None-Match. Amazon S3 itself needs no probe."""

    permission = "s3:PutObject"

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        *,
        new_id: clock.NewId,
        multipart_size: int,
        part_size: int,
    ) -> None:
        super().__init__(
            sleep=client.sleep, new_id=new_id, multipart_size=multipart_size, part_size=part_size
        )
        self._client = client
        self._bucket = bucket

    def is_trusted(self, key: str) -> bool:
        return self._client.is_aws

    def stage(self, key: str, source: BinaryIO, size: int, put_id: str) -> Callable[[], object]:
        target = {"Bucket": self._bucket, "Key": key}
        metadata = {_PUT_ID: put_id}
        if size <= self.multipart_size:
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
            part_size = max(self.part_size, -(-size // _MAX_PARTS))
            for number, body in enumerate(iter(partial(source.read, part_size), b""), start=1):
                part = self._client.call("upload_part", **target, PartNumber=number, Body=body)
                parts.append({"PartNumber": number, "ETag": part["ETag"]})
        return partial(self._complete, target, parts)

    def creation(self, key: str, put_id: str) -> Creation:
        head = self._client.call("head_object", Bucket=self._bucket, Key=key)
        return Creation(put_id=head.get("Metadata", {}).get(_PUT_ID), size=head["ContentLength"])

    def part(self, key: str, first: int, count: int) -> bytes:
        span = f"bytes={first}-{first + count - 1}"
        data: bytes = self._client.call("get_object", Bucket=self._bucket, Key=key, Range=span)[
            "Body"
        ]
        return data

    def put_probe(self, key: str) -> None:
        target = {"Bucket": self._bucket, "Key": key}
        self._client.call("put_object", **target, Body=b"probe", IfNoneMatch="*")

    def delete_probe(self, key: str) -> None:
        self._client.call("delete_object", Bucket=self._bucket, Key=key)

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
        """Aborts an upload that fails. If that fails, too, lifecycle rules remove it."""
        try:
            yield
        except BaseException:
            with suppress(S3Failure):
                self._client.send("abort_multipart_upload", **target)
            raise


_PUT_ID = "delta-maintenance-put-id"
_MAX_PARTS = 10_000
