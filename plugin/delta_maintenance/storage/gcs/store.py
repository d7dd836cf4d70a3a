"""A store on Google Cloud Storage, or on a server with the same JSON API."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from email.parser import BytesParser
from email.policy import HTTP
from functools import partial
from typing import Any, BinaryIO

from delta_maintenance import clock
from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.rest.client import Answer
from delta_maintenance.rest.failure import PAUSES, RequestFailure
from delta_maintenance.storage.core.conditional_put import ConditionalPut, Creation
from delta_maintenance.storage.core.object_store import Bucket, ObjectStatus, ObjectStore, Page
from delta_maintenance.storage.core.paths import check_directory
from delta_maintenance.storage.gcs.client import GCSClient, GCSFailure, GCSOptions, failure_of
from delta_maintenance.storage.gcs.old_versions import GCSOldVersions

OBJECT = "application/octet-stream"


class GCSPut(ConditionalPut):
    """Puts objects into one bucket with `ifGenerationMatch=0`: no live generation exists.

    Google itself needs no probe, except for buckets whose location type it does not report.
    """

    permission = "storage.objects.create and storage.objects.get"

    def __init__(
        self, client: GCSClient, *, new_id: clock.NewId, multipart_size: int, part_size: int
    ) -> None:
        super().__init__(
            sleep=client.sleep, new_id=new_id, multipart_size=multipart_size, part_size=part_size
        )
        self._client = client
        self._upload_path = f"/upload{client.bucket_path}/o"

    def is_trusted(self, key: str) -> bool:
        if not self._client.is_google:
            return False
        try:
            path = f"{self._client.bucket_path}/storageLayout"
            layout = self._client.ask(path, {"fields": "locationType"}, key=key)
        except GCSFailure as failure:
            if failure.access or failure.missing:
                return False
            raise
        if layout.get("locationType") == "zone":
            raise RefusedError(
                "the bucket is zonal, and atomic creation has not been verified for zonal buckets",
                remedy="move the table to a regional, dual- or multi-regional bucket",
            )
        return True

    def stage(
        self, key: str, source: BinaryIO, size: int, put_id: str, *, replaces: bool = False
    ) -> Callable[[], object]:
        condition = {} if replaces else {"ifGenerationMatch": 0}
        description: dict[str, object] = {
            "name": key,
            "contentType": OBJECT,
            "metadata": {_PUT_ID: put_id},
        }
        if size > self.multipart_size:
            return self._stage_parts(key, description, source, size, condition)
        body, content_type = _multipart(description, source.read(), put_id)
        return partial(
            self._client.send,
            "POST",
            self._upload_path,
            query={"uploadType": "multipart", **condition, "fields": "name"},
            headers={"Content-Type": content_type},
            body=body,
            key=key,
        )

    def creation(self, key: str, put_id: str) -> Creation:
        answer = self._client.ask(self._client.object_path(key), {"fields": "size,metadata"})
        return Creation(
            put_id=answer.get("metadata", {}).get(_PUT_ID), size=int(answer.get("size", 0))
        )

    def part(self, key: str, first: int, count: int) -> bytes:
        return self._client.call(
            "GET",
            self._client.object_path(key),
            query={"alt": "media"},
            headers={"Range": f"bytes={first}-{first + count - 1}"},
        ).body

    def put_probe(self, key: str) -> None:
        self._client.call(
            "POST",
            self._upload_path,
            query={"uploadType": "media", "name": key, "ifGenerationMatch": 0},
            headers={"Content-Type": OBJECT},
            body=b"probe",
        )

    def delete_probe(self, key: str) -> None:
        self._client.call("DELETE", self._client.object_path(key))

    def _stage_parts(
        self,
        key: str,
        description: dict[str, object],
        source: BinaryIO,
        size: int,
        condition: dict[str, int],
    ) -> Callable[[], object]:
        """Uploads all parts except the last one, which creates the object."""
        session = self._client.call(
            "POST",
            self._upload_path,
            query={"uploadType": "resumable", **condition},
            headers={"Content-Type": "application/json", "X-Upload-Content-Type": OBJECT},
            body=json.dumps(description).encode(),
            key=key,
        )
        upload = session.headers["Location"]
        with self._aborting(upload):
            offset = 0
            while size - offset > self.part_size:
                body = source.read(self.part_size)
                answer = self._client.call(
                    "PUT", upload, headers=_span(offset, len(body), size), body=body
                )
                # A server may store less of a part than was sent.
                kept_bytes = _kept(answer)
                if kept_bytes <= offset:
                    raise GCSFailure(status=answer.status, code="NothingKept", detail="")
                offset = source.seek(kept_bytes)
        return partial(self._finish, upload, offset, source.read(), size)

    def _finish(self, upload: str, first: int, body: bytes, size: int) -> None:
        with self._aborting(upload):
            answer = self._client.send(
                "PUT", upload, headers=_span(first, len(body), size), body=body
            )
            if answer.status == 308:
                raise GCSFailure(
                    status=None,
                    code="Incomplete",
                    detail="the server did not store a part completely",
                )

    @contextmanager
    def _aborting(self, upload: str) -> Iterator[None]:
        """Cancels an upload that fails. If that fails, too, Google removes it after a week."""
        try:
            yield
        except BaseException:
            with suppress(GCSFailure):
                self._client.send("DELETE", upload)
            raise


def _multipart(description: dict[str, object], data: bytes, put_id: str) -> tuple[bytes, str]:
    """Returns a multipart body of description and data (RFC 2387), and its content type."""
    boundary = f"part-{put_id}"
    while boundary.encode() in data:
        boundary += "-"
    body = b"".join(
        (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
            json.dumps(description).encode(),
            f"\r\n--{boundary}\r\nContent-Type: {OBJECT}\r\n\r\n".encode(),
            data,
            f"\r\n--{boundary}--\r\n".encode(),
        )
    )
    return body, f"multipart/related; boundary={boundary}"


def _span(first: int, count: int, size: int) -> dict[str, str]:
    return {"Content-Range": f"bytes {first}-{first + count - 1}/{size}"}


def _kept(answer: Answer) -> int:
    """Returns how many bytes of an upload the server has stored."""
    last_position = answer.headers.get("Range", "bytes=0--1").removeprefix("bytes=0-")
    return int(last_position) + 1


_PUT_ID = "delta-maintenance-put-id"


class GCSStore(ObjectStore):
    """The objects below `gs://BUCKET/PREFIX`; `gcs:` is an alias.

    A file larger than `multipart_size` bytes is uploaded in parts of `part_size` bytes, which must
    be a multiple of 256 KiB.
    """

    tells_old_versions = True

    def __init__(
        self,
        address: Address,
        storage_options: Mapping[str, str] | None = None,
        *,
        client: GCSClient | None = None,
        new_id: clock.NewId = clock.new_id,
        multipart_size: int = 64 << 20,
        part_size: int = 16 << 20,
    ) -> None:
        name, prefix = _location(address)
        if client is None:
            client = GCSClient(GCSOptions.parse(storage_options, os.environ), name)
        creator = GCSPut(client, new_id=new_id, multipart_size=multipart_size, part_size=part_size)
        location = f"{name}/{address.path}".rstrip("/")
        aliases = (f"gs://{location}", f"gcs://{location}")
        bucket, old_versions = _GCSBucket(client), GCSOldVersions(client, prefix)
        super().__init__(address, bucket, prefix, creator, old_versions, aliases=aliases)


class _GCSBucket(Bucket):
    lists_in_order = True
    permissions = {
        "read": "storage.objects.get and storage.objects.list",
        "list": "storage.objects.list",
        "write": "storage.objects.create and storage.objects.delete",
        "delete": "storage.objects.delete",
    }

    _client: GCSClient

    def page(self, prefix: str, *, deep: bool, start: str, token: str) -> Page:
        query: dict[str, object] = {
            "prefix": prefix,
            "fields": f"nextPageToken,prefixes,items({_FIELDS})",
        }
        if not deep:
            query["delimiter"] = "/"
        if start:
            query["startOffset"] = prefix + start
        if token:
            query["pageToken"] = token
        answer = self._client.ask(f"{self._client.bucket_path}/o", query)
        return Page(
            objects=[_status(item) for item in answer.get("items", ())],
            next=answer.get("nextPageToken", ""),
            prefixes=answer.get("prefixes", ()),
        )

    def head(self, key: str) -> ObjectStatus:
        return _status(self._client.ask(self._client.object_path(key), {"fields": _FIELDS}))

    def get(self, key: str, *, span: tuple[int, int] | None = None, tag: str = "") -> bytes:
        query: dict[str, object] = {"alt": "media"}
        if tag:
            query["ifGenerationMatch"] = tag
        # Without this header, an object stored with gzip would be decompressed on download, and its
        # ranges would return other bytes.
        headers = {"Accept-Encoding": "gzip"}
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1]}"
        return self._client.call(
            "GET", self._client.object_path(key), query=query, headers=headers
        ).body

    def put(self, key: str, data: bytes) -> None:
        self._client.call(
            "POST",
            f"/upload{self._client.bucket_path}/o",
            query={"uploadType": "media", "name": key, "fields": "name"},
            headers={"Content-Type": OBJECT},
            body=data,
        )

    def delete(
        self, keys: Sequence[str], *, times: Sequence[int] | None = None
    ) -> dict[str, RequestFailure]:
        return delete_objects(self._client, keys)


def _location(address: Address) -> tuple[str, str]:
    """Returns the bucket, and the common prefix of all keys below the root."""
    if address.kind is not StoreKind.GCS or not _BUCKET.fullmatch(address.authority):
        # The address is not repeated, because a malformed one may contain a password.
        raise InvalidRequestError(
            "the address is not of the form gs://BUCKET/PATH",
            remedy="correct it; pass credentials as storage options",
        )
    return address.authority, f"{check_directory(address.path)}/" if address.path else ""


def _status(item: dict[str, Any]) -> ObjectStatus:
    return ObjectStatus(
        key=item["name"],
        size=int(item["size"]),
        modified_ms=clock.epoch_millis(datetime.fromisoformat(item["updated"])),
        tag=item["generation"],
    )


_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_FIELDS = "name,size,updated,generation"


def delete_objects(client: GCSClient, keys: Sequence[str]) -> dict[str, RequestFailure]:
    """Deletes exactly these objects. Returns the failure for each object that may still exist.

    A key counts as deleted only if the answer confirms that key.
    """
    batches = [
        key_group[start : start + _PER_BATCH]
        for key_group in client.divide(keys)
        for start in range(0, len(key_group), _PER_BATCH)
    ]
    if len(batches) == 1:
        return _delete(client, batches[0])
    kept: dict[str, RequestFailure] = {}
    with ThreadPoolExecutor(_BATCHES_AT_ONCE) as pool:
        for failures in pool.map(lambda batch: _delete(client, batch), batches):
            kept |= failures
    return kept


def _delete(client: GCSClient, keys: Sequence[str]) -> dict[str, RequestFailure]:
    failures = _attempt(client, keys)
    for pause in PAUSES:
        # Single requests of a batch can be throttled.
        again = [key for key, failure in failures.items() if failure.is_unsure or failure.conflict]
        if not again:
            break
        client.sleep(pause)
        failures = {key: failures[key] for key in failures if key not in again} | _attempt(
            client, again
        )
    return failures


def _attempt(client: GCSClient, keys: Sequence[str]) -> dict[str, RequestFailure]:
    failures: dict[str, RequestFailure] = {}
    try:
        if len(keys) == 1:
            client.send("DELETE", client.object_path(keys[0]))
            return {}
        answer = client.send(
            "POST",
            "/batch/storage/v1",
            headers={"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"},
            body=_requests(client, keys),
            key=keys[0],
        )
        answers = _answers(answer.headers.get("Content-Type", ""), answer.body)
    except RequestFailure as failure:
        return {} if failure.missing and len(keys) == 1 else dict.fromkeys(keys, failure)
    for number, key in enumerate(keys):
        status, body = answers.get(number, (200, b""))
        if number not in answers:
            failures[key] = GCSFailure(status=200, code="NotConfirmed", detail="")
        elif not 200 <= status < 300:
            refusal = failure_of(status, body)
            if not refusal.missing:
                failures[key] = refusal
    return failures


def _requests(client: GCSClient, keys: Sequence[str]) -> bytes:
    """Returns the body of a batch. The boundary cannot occur in percent-encoded paths."""
    request_parts = (
        f"--{_BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\n"
        f"DELETE {client.object_path(key)} HTTP/1.1\r\n\r\n\r\n"
        for number, key in enumerate(keys)
    )
    return ("".join(request_parts) + f"--{_BOUNDARY}--\r\n").encode()


def _answers(content_type: str, body: bytes) -> dict[int, tuple[int, bytes]]:
    """Returns status and body of each answer in a batch, by the number of its request."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    answers = {}
    for message in BytesParser(policy=HTTP).parsebytes(head + body).walk():
        number = re.search(r"response-(\d+)>?$", str(message.get("Content-ID", "")).strip())
        content = message.get_payload(decode=True)
        if number is None or not isinstance(content, bytes):
            continue
        status = re.match(rb"HTTP/[\d.]+ (\d{3})\b", content.lstrip())
        if status is not None:
            head_and_body = re.split(rb"\r?\n\r?\n", content, maxsplit=1)
            answers[int(number[1])] = (
                int(status[1]),
                head_and_body[1] if len(head_and_body) > 1 else b"",
            )
    return answers


_PER_BATCH = 100
_BATCHES_AT_ONCE = 8
_BOUNDARY = "==delete=="
