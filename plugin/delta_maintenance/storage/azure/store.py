"""A store on Azure Blob Storage, Data Lake Storage Gen2, or a server with the same API."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from typing import BinaryIO

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.rest.client import Answer
from delta_maintenance.rest.failure import RequestFailure, patiently
from delta_maintenance.storage.azure.client import AzureClient, AzureFailure
from delta_maintenance.storage.azure.listing import (
    AzureOldVersions,
    is_directory,
    listing_of,
    millis_of,
    name_of,
)
from delta_maintenance.storage.azure.options import AzureAddress, AzureOptions
from delta_maintenance.storage.core.conditional_put import ConditionalPut, Creation
from delta_maintenance.storage.core.object_store import Bucket, ObjectStatus, ObjectStore, Page

BLOCK_BLOB = {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream"}


class AzurePut(ConditionalPut):
    """Puts blobs into one container with If-None-Match. Azure itself needs no probe."""

    permission = "Storage Blob Data Contributor"

    def __init__(
        self, client: AzureClient, *, new_id: clock.NewId, multipart_size: int, part_size: int
    ) -> None:
        super().__init__(
            sleep=client.sleep, new_id=new_id, multipart_size=multipart_size, part_size=part_size
        )
        self._client = client

    def is_trusted(self, key: str) -> bool:
        return self._client.is_azure

    def stage(
        self, key: str, source: BinaryIO, size: int, put_id: str, *, replaces: bool = False
    ) -> Callable[[], object]:
        headers = {_PUT_ID: put_id, **({} if replaces else {"If-None-Match": "*"})}
        if size <= self.multipart_size:
            return partial(
                self._client.send, "PUT", key, headers=BLOCK_BLOB | headers, body=source.read()
            )
        blocks = []
        part_size = max(self.part_size, -(-size // _MAX_BLOCKS))
        for number, body in enumerate(iter(partial(source.read, part_size), b"")):
            # Uncommitted blocks are stored under the blob's name, where blocks with equal IDs
            # replace each other. The ID of the call keeps the blocks of concurrent writers apart.
            # Azure deletes unused blocks after a week.
            block = base64.b64encode(f"{put_id}-{number:05}".encode()).decode()
            query = {"comp": "block", "blockid": block}
            self._client.call("PUT", key, query=query, body=body)
            blocks.append(f"<Uncommitted>{block}</Uncommitted>")
        text = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{"".join(blocks)}</BlockList>'
        return partial(
            self._client.send,
            "PUT",
            key,
            query={"comp": "blocklist"},
            headers={"Content-Type": "application/xml", **headers},
            body=text.encode(),
        )

    def creation(self, key: str, put_id: str) -> Creation:
        headers = self._client.call("HEAD", key).headers
        return Creation(put_id=headers.get(_PUT_ID), size=int(headers["Content-Length"]))

    def part(self, key: str, first: int, count: int) -> bytes:
        span = f"bytes={first}-{first + count - 1}"
        return self._client.call("GET", key, headers={"x-ms-range": span}).body

    def put_probe(self, key: str) -> None:
        headers = {"If-None-Match": "*", **BLOCK_BLOB}
        self._client.call("PUT", key, headers=headers, body=b"probe")

    def delete_probe(self, key: str) -> None:
        self._client.call("DELETE", key)


# Metadata names cannot contain dashes.
_PUT_ID = "x-ms-meta-delta_maintenance_put_id"
_MAX_BLOCKS = 50_000


class AzureStore(ObjectStore):
    """The blobs below `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX` or
    `az://CONTAINER/PREFIX`; `abfs:` is an alias.

    The account may have a hierarchical namespace or not; directories never count as files. A file
    larger than `multipart_size` bytes is uploaded in blocks of `part_size` bytes.
    """

    tells_old_versions = True

    def __init__(
        self,
        address: Address,
        storage_options: Mapping[str, str] | None = None,
        *,
        client: AzureClient | None = None,
        new_id: clock.NewId = clock.new_id,
        multipart_size: int = 64 << 20,
        part_size: int = 16 << 20,
    ) -> None:
        location = AzureAddress.of(address)
        if client is None:
            options = AzureOptions.parse(storage_options, location, os.environ)
            client = AzureClient(options, location.container)
        creator = AzurePut(
            client, new_id=new_id, multipart_size=multipart_size, part_size=part_size
        )
        super().__init__(
            address,
            _AzureBucket(client),
            location.prefix,
            creator,
            AzureOldVersions(client, location.prefix),
            aliases=location.aliases(client.endpoint),
        )


class _AzureBucket(Bucket):
    permissions = {
        "read": "Storage Blob Data Reader",
        "list": "Storage Blob Data Reader",
        "write": "Storage Blob Data Contributor",
        "delete": "Storage Blob Data Contributor",
    }

    _client: AzureClient

    def page(self, prefix: str, *, deep: bool, start: str, token: str) -> Page:
        # `start` is not sent: no API version that all accounts support can start inside a
        # directory.
        query = {
            "restype": "container",
            "comp": "list",
            # Without the metadata, the marker of a directory looks like an empty file.
            "include": "metadata",
            **({} if deep else {"delimiter": "/"}),
            **({"prefix": prefix} if prefix else {}),
            **({"marker": token} if token else {}),
        }
        return patiently(
            lambda: _page(self._client.send("GET", query=query)),
            self._client.sleep,
            self._client.pauses,
        )

    def head(self, key: str) -> ObjectStatus:
        headers = _file(self._client.call("HEAD", key)).headers
        return ObjectStatus(
            key=key,
            size=int(headers["Content-Length"]),
            modified_ms=millis_of(headers["Last-Modified"]),
            tag=headers["ETag"],
        )

    def get(self, key: str, *, span: tuple[int, int] | None = None, tag: str = "") -> bytes:
        headers = {"If-Match": tag} if tag else {}
        if span is not None:
            headers["x-ms-range"] = f"bytes={span[0]}-{span[1]}"
        return _file(self._client.call("GET", key, headers=headers)).body

    def put(self, key: str, data: bytes) -> None:
        self._client.call("PUT", key, headers=BLOCK_BLOB, body=data)

    def delete(
        self, keys: Sequence[str], *, times: Sequence[int] | None = None
    ) -> dict[str, RequestFailure]:
        # One request per blob: Azure's batch responses are matched to requests by order alone, and
        # a batch needs other permissions than a delete.
        limits: Sequence[int | None] = times if times is not None else [None] * len(keys)
        if len(keys) == 1:
            failures = [self._delete(keys[0], limits[0])]
        else:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                failures = list(pool.map(self._delete, keys, limits))
        return {
            key: failure for key, failure in zip(keys, failures, strict=True) if failure is not None
        }

    def _delete(self, key: str, modified_ms: int | None) -> RequestFailure | None:
        headers = {}
        if modified_ms is not None:
            modified = datetime.fromtimestamp(modified_ms // 1000, UTC)
            headers["If-Unmodified-Since"] = format_datetime(modified, usegmt=True)
        try:
            self._client.call("DELETE", key, headers=headers)
        except RequestFailure as failure:
            return None if failure.missing else failure
        return None


def _page(answer: Answer) -> Page:
    listing = listing_of(answer)
    objects = []
    for blob in listing.iterfind("Blobs/Blob"):
        if is_directory(blob):
            continue
        objects.append(
            ObjectStatus(
                key=name_of(blob),
                size=int(blob.findtext("Properties/Content-Length", "")),
                modified_ms=millis_of(blob.findtext("Properties/Last-Modified", "")),
                storage_class=blob.findtext("Properties/AccessTier"),
            )
        )
    return Page(
        objects=objects,
        next=listing.findtext("NextMarker") or "",
        prefixes=[name_of(prefix) for prefix in listing.iterfind("Blobs/BlobPrefix")],
    )


def _file(answer: Answer) -> Answer:
    """Returns the answer, unless it describes a directory."""
    is_folder = answer.headers.get("x-ms-meta-hdi_isfolder", "").lower() == "true"
    if is_folder or answer.headers.get("x-ms-resource-type") == "directory":
        raise AzureFailure(status=404, code="IsDirectory", detail="")
    return answer


_AT_ONCE = 16
