"""Counting requests to a store, by the classes that stores charge for."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, fields
from typing import Literal
from urllib.parse import parse_qs, urlsplit

RequestClass = Literal["read", "write", "list", "delete", "other"]
_BY_METHOD: dict[str, RequestClass] = {
    "GET": "read",
    "PUT": "write",
    "POST": "write",
    "PATCH": "write",
    "DELETE": "delete",
}
_GOOGLE = re.compile(r"/storage/v1/b/")
_HDFS: dict[str, RequestClass] = {
    "LISTSTATUS": "list",
    "LISTSTATUS_BATCH": "list",
    "GETFILESTATUS": "other",
}
_S3: dict[str, RequestClass] = {
    "get_object": "read",
    "list_objects_v2": "list",
    "list_object_versions": "list",
    "list_multipart_uploads": "list",
    "put_object": "write",
    "create_multipart_upload": "write",
    "upload_part": "write",
    "complete_multipart_upload": "write",
    "delete_object": "delete",
    "delete_objects": "delete",
    "abort_multipart_upload": "delete",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Requests that were sent, with those that were repeated, and bytes of contents of files."""

    read: int = 0
    """Requests for contents of files, or parts of them."""
    write: int = 0
    list: int = 0
    delete: int = 0
    other: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0

    def since(self, earlier: Usage) -> Usage:
        """Returns the difference from an earlier state."""
        return Usage(
            **{
                field.name: getattr(self, field.name) - getattr(earlier, field.name)
                for field in fields(self)
            }
        )


class Meter:
    """Counts the requests of one client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[RequestClass, int] = {}
        self._received = self._sent = 0

    def count(self, kind: RequestClass, *, received: int = 0, sent: int = 0) -> None:
        """Adds a request; its bytes count if it reads or writes contents of files."""
        with self._lock:
            self._requests[kind] = self._requests.get(kind, 0) + 1
            self._received += received if kind == "read" else 0
            self._sent += sent if kind == "write" else 0

    @property
    def usage(self) -> Usage:
        """Everything until now."""
        with self._lock:
            return Usage(**self._requests, bytes_received=self._received, bytes_sent=self._sent)


def class_of_http(method: str, url: str) -> RequestClass:
    """Returns the class of a request to Google Cloud Storage, Azure or WebHDFS."""
    split_url = urlsplit(url)
    query = parse_qs(split_url.query)
    if "op" in query:
        return _HDFS.get(query["op"][0].upper(), _BY_METHOD.get(method, "other"))
    if split_url.path.startswith("/batch/") or query.get("comp") == ["batch"]:
        return "delete"
    if method != "GET":
        return _BY_METHOD.get(method, "other")
    if query.get("comp") == ["list"]:
        return "list"
    if not _GOOGLE.match(split_url.path) or query.get("alt") == ["media"]:
        return "read"
    return "list" if split_url.path.endswith("/o") else "other"


def class_of_s3(method: str) -> RequestClass:
    """Returns the class of a request to S3, by the client's name of it."""
    return _S3.get(method, "other")
