"""Requests to HDFS's REST interface (WebHDFS), with classified failures."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal
from urllib.parse import quote, urlencode, urlsplit

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.redaction import redact
from delta_maintenance.rest.client import Answer, HttpSession, RestClient
from delta_maintenance.rest.failure import PAUSES, patiently
from delta_maintenance.storage.core.directory_store import Entry
from delta_maintenance.storage.core.option_values import hide_secrets, require_package
from delta_maintenance.storage.hdfs.client import HdfsClient, HdfsFailure
from delta_maintenance.storage.hdfs.options import WebHdfsOptions


class WebHdfsClient(RestClient, HdfsClient):
    """Sends requests to the name nodes of one file system and to its data nodes. Thread-safe.

    `sleep` takes seconds; `pauses` are the seconds to wait before each further attempt of an
    idempotent request.
    """

    failure = HdfsFailure
    interface = "WebHDFS"
    # 307 redirects to a data node.
    success = frozenset((200, 201, 307))
    has_inodes = True

    def __init__(
        self,
        options: WebHdfsOptions,
        *,
        session: HttpSession | None = None,
        sleep: Callable[[float], None] = time.sleep,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        super().__init__(sleep=sleep, pauses=pauses)
        require_package("requests", addresses="addresses on HDFS", extra="hdfs")
        self._options = options
        self._session = session or HttpSession(auth=_negotiation() if options.kerberos else None)
        self._active = 0
        self._switching = threading.Lock()

    def status(self, path: str) -> Entry:
        answer = self.ask("GETFILESTATUS", path)
        try:
            return _entry(answer["FileStatus"])
        except (KeyError, TypeError, ValueError):
            raise HdfsFailure(status=None, code="NoStatus", detail=_NO_ANSWER) from None

    def entries(self, path: str, after: str = "") -> Iterator[Entry]:
        while True:
            answer = self.ask("LISTSTATUS_BATCH", path, startafter=after)
            try:
                listing = answer["DirectoryListing"]
                page = listing["partialListing"]["FileStatuses"]["FileStatus"]
                remaining = int(listing["remainingEntries"])
                # The listing of a file contains the file itself, without a name.
                entries = [_entry(status) for status in page if status["pathSuffix"]]
            except (KeyError, TypeError, ValueError):
                raise HdfsFailure(status=None, code="NoListing", detail=_NO_ANSWER) from None
            yield from entries
            if not remaining:
                return
            if not entries or entries[-1].name <= after:
                raise HdfsFailure(status=None, code="NoProgress", detail="the listing does not end")
            after = entries[-1].name

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        query = {"offset": offset} | ({} if length is None else {"length": length})

        def once() -> bytes:
            return self._follow("GET", path, self.send("GET", "OPEN", path, **query)).body

        try:
            return patiently(once, self.sleep, self.pauses)
        except HdfsFailure as failure:
            if failure.is_past_end:
                return b""
            raise

    def upload(self, path: str, source: BinaryIO, size: int) -> None:
        answer = self.send("PUT", "CREATE", path, overwrite="false", createflag=_CREATE_AND_SYNC)
        self._follow("PUT", path, answer, source if size else b"")

    def rename(self, path: str, target: str, *, replace: bool) -> None:
        options = "OVERWRITE" if replace else "NONE"
        self.send("PUT", "RENAME", path, destination=target, renameoptions=options)

    def delete(self, path: str) -> None:
        # Without `recursive`, only an empty directory is deleted.
        self.send("DELETE", "DELETE", path, recursive="false")

    def ask(self, operation: str, path: str, **query: object) -> dict[str, Any]:
        """Sends a GET request and returns the fields of the answer, with the names of WebHDFS."""

        def once() -> dict[str, Any]:
            return self._fields(self.send("GET", operation, path, **query))

        return patiently(once, self.sleep, self.pauses)

    def send(self, method: str, operation: str, path: str, **query: object) -> Answer:
        """Sends a request to the name node once; `path` is absolute and literal.

        The answer may redirect to a data node.
        """
        options = self._options
        parameters = {"op": operation, **{name: str(value) for name, value in query.items()}}
        if options.token is not None:
            parameters["delegation"] = options.token
        elif options.user is not None and not options.kerberos:
            parameters["user.name"] = options.user
        if options.proxy_user is not None:
            parameters["doas"] = options.proxy_user
        active = self._active
        url = f"{options.endpoints[active]}{_PREFIX}{quote(path)}?"
        try:
            return self._sent(method, url + urlencode(parameters, quote_via=quote))
        except HdfsFailure as failure:
            if failure.status is None or failure.code == "StandbyException":
                # The active name node may have changed.
                with self._switching:
                    if self._active == active:
                        self._active = (active + 1) % len(options.endpoints)
            raise

    def _follow(
        self, method: str, path: str, answer: Answer, body: bytes | BinaryIO | None = None
    ) -> Answer:
        """Sends the request to the data node to which the name node redirects."""
        location = answer.headers.get("Location")
        if answer.status != 307 or location is None:
            raise HdfsFailure(
                status=501, code="NoRedirect", detail="the server does not redirect to a data node"
            )
        if self._options.endpoints[0].startswith("https:") and not location.startswith("https:"):
            raise HdfsFailure(
                status=403, code="SecurityException", detail="the data node does not use TLS"
            )
        # Our own path is kept, because Java normalises Unicode in the URL of the redirect.
        here = urlsplit(location)._replace(path=f"{_PREFIX}{quote(path)}")
        return self._sent(method, here.geturl(), body)

    def _sent(self, method: str, url: str, body: bytes | BinaryIO | None = None) -> Answer:
        headers = {} if body is None else {"Content-Type": "application/octet-stream"}
        token = self._options.token
        return self._exchange(
            method, url, headers, body, refused=lambda answer: _failure_of(answer, token)
        )


def _entry(status: Mapping[str, Any]) -> Entry:
    kinds: dict[str, Literal["file", "directory"]] = {"FILE": "file", "DIRECTORY": "directory"}
    return Entry(
        name=status["pathSuffix"],
        kind=kinds.get(status["type"], "other"),
        size=int(status["length"]),
        modified_ms=int(status["modificationTime"]),
        tag=str(int(status["fileId"])),
    )


def _negotiation() -> Any:
    """Returns a handler for Kerberos (SPNEGO) with the ticket of this process."""
    try:
        from requests_gssapi import DISABLED, HTTPSPNEGOAuth
    except ImportError as error:
        raise InvalidRequestError(
            "Kerberos needs the package requests-gssapi",
            remedy="install delta-maintenance[kerberos], or give a delegation token",
        ) from error
    # If TLS is used, it authenticates the server.
    return HTTPSPNEGOAuth(mutual_authentication=DISABLED)


def _failure_of(answer: Answer, token: str | None) -> HdfsFailure:
    """Converts an unsuccessful answer to a failure."""
    code, detail = f"HTTP {answer.status}", ""
    try:
        exception = json.loads(answer.body)["RemoteException"]
        code = str(exception["exception"])
        lines = str(exception["message"]).splitlines()
        detail = redact(hide_secrets(lines[0], (token,)))[:200] if lines else ""
    except (ValueError, KeyError, TypeError):
        # Proxies answer in plain text.
        pass
    return HdfsFailure(status=answer.status, code=code, detail=detail)


_PREFIX = "/webhdfs/v1"
_NO_ANSWER = "not an answer of WebHDFS"
_CREATE_AND_SYNC = "CREATE,SYNC_BLOCK"
