"""Conditional puts on Azure Blob Storage, in one request or in blocks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from delta_maintenance import clock
from delta_maintenance.storage.azure.client import AzureClient
from delta_maintenance.storage.core.conditional_put import ConditionalPut, Creation

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

    def stage(self, key: str, source: BinaryIO, size: int, put_id: str) -> Callable[[], object]:
        headers = {"If-None-Match": "*", _PUT_ID: put_id}
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
