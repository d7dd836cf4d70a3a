"""A store on Amazon S3, or on a server with the same protocol and conditional writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

from delta_maintenance import clock
from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.rest.failure import RequestFailure
from delta_maintenance.storage.core.conditional_put import ConditionalPut, Creation
from delta_maintenance.storage.core.object_store import Bucket, ObjectStatus, ObjectStore, Page
from delta_maintenance.storage.core.paths import check_directory, just_before
from delta_maintenance.storage.s3.client import Reply, S3Client, S3Failure, S3Options
from delta_maintenance.storage.s3.old_versions import S3OldVersions


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

    def stage(
        self, key: str, source: BinaryIO, size: int, put_id: str, *, replaces: bool = False
    ) -> Callable[[], object]:
        target = {"Bucket": self._bucket, "Key": key}
        metadata = {_PUT_ID: put_id}
        condition = {} if replaces else {"IfNoneMatch": "*"}
        if size <= self.multipart_size:
            return partial(
                self._client.send,
                "put_object",
                **target,
                Body=source.read(),
                Metadata=metadata,
                **condition,
            )
        upload = self._client.call("create_multipart_upload", **target, Metadata=metadata)
        target["UploadId"] = upload["UploadId"]
        with self._aborting(target):
            uploaded_parts = []
            part_size = max(self.part_size, -(-size // _MAX_PARTS))
            for number, body in enumerate(iter(partial(source.read, part_size), b""), start=1):
                uploaded_part = self._client.call(
                    "upload_part", **target, PartNumber=number, Body=body
                )
                uploaded_parts.append({"PartNumber": number, "ETag": uploaded_part["ETag"]})
        return partial(self._complete, target, uploaded_parts, condition)

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

    def _complete(
        self,
        target: dict[str, str],
        uploaded_parts: list[dict[str, Any]],
        condition: dict[str, str],
    ) -> None:
        with self._aborting(target):
            self._client.send(
                "complete_multipart_upload",
                **target,
                MultipartUpload={"Parts": uploaded_parts},
                **condition,
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


class S3Store(ObjectStore):
    """The objects below `s3://BUCKET/PREFIX`; `s3a:` and `s3n:` are aliases.

    A file larger than `multipart_size` bytes is uploaded in parts of `part_size` bytes, which must
    be at least 5 MiB.
    """

    tells_old_versions = True

    def __init__(
        self,
        address: Address,
        storage_options: Mapping[str, str] | None = None,
        *,
        client: S3Client | None = None,
        new_id: clock.NewId = clock.new_id,
        multipart_size: int = 64 << 20,
        part_size: int = 16 << 20,
    ) -> None:
        bucket, prefix = _location(address)
        client = client or S3Client(S3Options.parse(storage_options))
        creator = S3Put(
            client, bucket, new_id=new_id, multipart_size=multipart_size, part_size=part_size
        )
        old_versions = S3OldVersions(client, bucket, prefix)
        super().__init__(address, _S3Bucket(client, bucket), prefix, creator, old_versions)


class _S3Bucket(Bucket):
    permissions = {
        # Without the permission to list, S3 answers "forbidden" for missing objects.
        "read": "s3:GetObject and s3:ListBucket",
        "list": "s3:ListBucket",
        "write": "s3:PutObject",
        "delete": "s3:DeleteObject",
    }
    lists_in_order = True

    _client: S3Client

    def __init__(self, client: S3Client, name: str) -> None:
        super().__init__(client)
        self._name = name

    def page(self, prefix: str, *, deep: bool, start: str, token: str) -> Page:
        request = {"Bucket": self._name, "Prefix": prefix}
        if not deep:
            request["Delimiter"] = "/"
        if start:
            request["StartAfter"] = prefix + just_before(start)
        if token:
            request["ContinuationToken"] = token
        answer = self._client.call("list_objects_v2", **request)
        return Page(
            objects=[
                ObjectStatus(
                    key=entry["Key"],
                    size=entry["Size"],
                    modified_ms=clock.epoch_millis(entry["LastModified"]),
                    tag=entry.get("ETag", ""),
                    storage_class=entry.get("StorageClass"),
                )
                for entry in answer.get("Contents", ())
            ],
            next=answer["NextContinuationToken"] if answer["IsTruncated"] else "",
            prefixes=[entry["Prefix"] for entry in answer.get("CommonPrefixes", ())],
        )

    def head(self, key: str) -> ObjectStatus:
        answer = self._call("head_object", key)
        return ObjectStatus(
            key=key,
            size=answer["ContentLength"],
            modified_ms=clock.epoch_millis(answer["LastModified"]),
            tag=answer["ETag"],
            metadata=answer.get("Metadata"),
        )

    def get(self, key: str, *, span: tuple[int, int] | None = None, tag: str = "") -> bytes:
        parameters = {"IfMatch": tag} if tag else {}
        if span is not None:
            parameters["Range"] = f"bytes={span[0]}-{span[1]}"
        data: bytes = self._call("get_object", key, **parameters)["Body"]
        return data

    def put(self, key: str, data: bytes) -> None:
        self._call("put_object", key, Body=data)

    def delete(
        self, keys: Sequence[str], *, times: Sequence[int] | None = None
    ) -> dict[str, RequestFailure]:
        failures: dict[str, RequestFailure] = {}
        for key_group in self._client.divide(keys):
            for start in range(0, len(key_group), _KEYS_PER_DELETE):
                failures |= self._delete(key_group[start : start + _KEYS_PER_DELETE])
        return failures

    def _call(self, method: str, key: str, **parameters: Any) -> Reply:
        return self._client.call(method, Bucket=self._name, Key=key, **parameters)

    def _delete(self, keys: Sequence[str]) -> dict[str, S3Failure]:
        """Deletes up to one request's worth of keys. Returns the keys that S3 did not confirm."""
        try:
            answer = self._client.call(
                "delete_objects",
                Bucket=self._name,
                # Not quiet, to detect keys that are reported neither as deleted nor as failed.
                Delete={"Objects": [{"Key": key} for key in keys], "Quiet": False},
            )
        except S3Failure as failure:
            return dict.fromkeys(keys, failure)
        deleted = {entry.get("Key") for entry in answer.get("Deleted", ())}
        detail = {entry.get("Key"): entry for entry in answer.get("Errors", ())}
        failures = {}
        for key in keys:
            code = detail.get(key, {}).get("Code", "NotConfirmed")
            if key not in deleted and code != "NoSuchKey":
                message = detail.get(key, {}).get("Message", "")
                failures[key] = S3Failure(status=200, code=code, detail=message)
        return failures


def _location(address: Address) -> tuple[str, str]:
    """Returns the bucket, and the common prefix of all keys below the root."""
    if address.kind is not StoreKind.S3 or not _BUCKET.fullmatch(address.authority):
        # The address is not repeated, because a malformed one may contain a password.
        raise InvalidRequestError(
            "the address is not of the form s3://BUCKET/PATH",
            remedy="correct it; pass credentials as storage options",
        )
    return address.authority, f"{check_directory(address.path)}/" if address.path else ""


_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_KEYS_PER_DELETE = 1000
