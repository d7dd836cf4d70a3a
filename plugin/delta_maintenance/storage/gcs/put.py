"""Conditional puts on Google Cloud Storage, in one request or as a resumable upload."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO

from delta_maintenance import clock
from delta_maintenance.errors import RefusedError
from delta_maintenance.rest.client import Answer
from delta_maintenance.storage.core.conditional_put import ConditionalPut, Creation
from delta_maintenance.storage.gcs.client import GCSClient, GCSFailure

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
        body, content_type = _related(description, source.read(), put_id)
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
        found = self._client.ask(self._client.object_path(key), {"fields": "size,metadata"})
        return Creation(
            put_id=found.get("metadata", {}).get(_PUT_ID), size=int(found.get("size", 0))
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
            first = 0
            while size - first > self.part_size:
                body = source.read(self.part_size)
                answer = self._client.call(
                    "PUT", upload, headers=_span(first, len(body), size), body=body
                )
                # A server may store less of a part than was sent.
                kept = _kept(answer)
                if kept <= first:
                    raise GCSFailure(status=answer.status, code="NothingKept", detail="")
                first = source.seek(kept)
        return partial(self._finish, upload, first, source.read(), size)

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


def _related(description: dict[str, object], data: bytes, put_id: str) -> tuple[bytes, str]:
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
    last = answer.headers.get("Range", "bytes=0--1").removeprefix("bytes=0-")
    return int(last) + 1


_PUT_ID = "delta-maintenance-put-id"
