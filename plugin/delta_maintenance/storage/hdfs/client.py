"""Requests to HDFS's REST interface (WebHDFS), with failures told apart."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.redaction import redact
from delta_maintenance.storage.core.http_session import Answer, HttpSession
from delta_maintenance.storage.core.option_values import redacted
from delta_maintenance.storage.core.packages import require_package
from delta_maintenance.storage.core.request_failure import PAUSES, RequestFailure, patiently
from delta_maintenance.storage.core.rest_client import RestClient
from delta_maintenance.storage.hdfs.options import HdfsOptions


class HdfsFailure(RequestFailure):
    """A request that HDFS did not answer with success. `code` is the name of its exception."""

    service = "HDFS"
    access_codes = frozenset(
        (
            "AccessControlException",
            "AuthenticationException",
            "AuthorizationException",
            "ExpiredToken",
            "InvalidToken",
            "SecurityException",
            # A name node never answers this; a proxy does.
            "HTTP 404",
        )
    )

    @property
    def missing(self) -> bool:
        return self.code == "FileNotFoundException"

    @property
    def precondition_failed(self) -> bool:
        return self.code == "FileAlreadyExistsException"

    @property
    def conflict(self) -> bool:
        # The name node refuses every change for the moment, so this one had no effect.
        return self.code in ("StandbyException", "RetriableException", "SafeModeException")

    @property
    def access(self) -> bool:
        # Every exception of Java comes with the status 403.
        named = self.code in self.access_codes or self.code == f"HTTP {self.status}"
        return self.status == 401 or (named and self.status in (301, 302, 307, 403, 404))

    @property
    def unsupported(self) -> bool:
        return self.status == 501 or self.code == "UnsupportedOperationException"

    @property
    def is_past_end(self) -> bool:
        """A read begins behind the end of a file."""
        return "out of the range" in str(self)

    @property
    def has_content(self) -> bool:
        """A directory is not empty."""
        return self.code == "PathIsNotEmptyDirectoryException"


class HdfsClient(RestClient):
    """Sends requests to the name nodes of one file system, and to its data nodes. Thread-safe.

    `sleep` takes seconds; `pauses`, in seconds, come before each further attempt of a request that
    may be repeated.
    """

    failure = HdfsFailure
    interface = "WebHDFS"
    # 307 redirects to a data node.
    success = frozenset((200, 201, 307))

    def __init__(
        self,
        options: HdfsOptions,
        *,
        session: HttpSession | None = None,
        sleep: Callable[[float], None] = time.sleep,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        require_package("requests", addresses="addresses on HDFS", extra="hdfs")
        self.sleep = sleep
        self.pauses = pauses
        self._options = options
        self._session = session or HttpSession(auth=_negotiation() if options.kerberos else None)
        self._active = 0
        self._switching = threading.Lock()

    def call(self, method: str, operation: str, path: str, **query: object) -> Answer:
        """Sends a request that may be repeated. `HdfsFailure` after the last attempt."""
        return patiently(
            partial(self.send, method, operation, path, **query), self.sleep, self.pauses
        )

    def ask(self, operation: str, path: str, **query: object) -> dict[str, Any]:
        """Sends a GET request. Returns the fields of its answer, named as WebHDFS names them."""

        def once() -> dict[str, Any]:
            return self._fields(self.send("GET", operation, path, **query))

        return patiently(once, self.sleep, self.pauses)

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """A file, or at most `length` bytes of it from `offset` on; repeated if need be."""
        query = {"offset": offset} | ({} if length is None else {"length": length})
        return patiently(
            lambda: self._follow("GET", path, self.send("GET", "OPEN", path, **query)).body,
            self.sleep,
            self.pauses,
        )

    def upload(self, path: str, body: bytes | BinaryIO, **query: object) -> None:
        """Creates a file, once. `HdfsFailure` unless it is closed and complete."""
        self._follow("PUT", path, self.send("PUT", "CREATE", path, **query), body)

    def send(self, method: str, operation: str, path: str, **query: object) -> Answer:
        """Sends a request to the name node once; `path` is absolute and literal.

        The answer may redirect to a data node.
        """
        options = self._options
        asked = {"op": operation, **{name: str(value) for name, value in query.items()}}
        if options.token is not None:
            asked["delegation"] = options.token
        elif options.user is not None and not options.kerberos:
            asked["user.name"] = options.user
        if options.proxy_user is not None:
            asked["doas"] = options.proxy_user
        active = self._active
        url = f"{options.endpoints[active]}{_PREFIX}{quote(path)}?"
        try:
            return self._sent(method, url + urlencode(asked, quote_via=quote))
        except HdfsFailure as failure:
            if failure.status is None or failure.code == "StandbyException":
                # Another name node may be the active one by now.
                with self._switching:
                    if self._active == active:
                        self._active = (active + 1) % len(options.endpoints)
            raise

    def _follow(
        self, method: str, path: str, answer: Answer, body: bytes | BinaryIO | None = None
    ) -> Answer:
        """The answer of the data node to which the name node redirects."""
        place = answer.headers.get("Location")
        if answer.status != 307 or place is None:
            raise HdfsFailure(
                status=501, code="NoRedirect", said="the server does not send on to a data node"
            )
        if self._options.endpoints[0].startswith("https:") and not place.startswith("https:"):
            raise HdfsFailure(
                status=403, code="SecurityException", said="the data node does not use TLS"
            )
        # With our own path, because Java composes accents in the address of the redirect.
        here = urlsplit(place)._replace(path=f"{_PREFIX}{quote(path)}")
        return self._sent(method, here.geturl(), body)

    def _sent(self, method: str, url: str, body: bytes | BinaryIO | None = None) -> Answer:
        headers = {} if body is None else {"Content-Type": "application/octet-stream"}
        token = self._options.token
        return self._exchange(
            method, url, headers, body, refused=lambda answer: _failure_of(answer, token)
        )


def _negotiation() -> Any:
    """Logs in by Kerberos (SPNEGO), with the ticket of this process."""
    try:
        from requests_gssapi import DISABLED, HTTPSPNEGOAuth
    except ImportError as error:
        raise InvalidRequestError(
            "Kerberos needs the package requests-gssapi",
            remedy="install delta-maintenance[kerberos], or give a delegation token",
        ) from error
    # TLS authenticates the server, if it is used.
    return HTTPSPNEGOAuth(mutual_authentication=DISABLED)


def _failure_of(answer: Answer, token: str | None) -> HdfsFailure:
    """The failure that an answer without success describes."""
    code, said = f"HTTP {answer.status}", ""
    try:
        told = json.loads(answer.body)["RemoteException"]
        code = str(told["exception"])
        lines = str(told["message"]).splitlines()
        said = redact(redacted(lines[0], (token,)))[:200] if lines else ""
    except (ValueError, KeyError, TypeError):
        # Proxies answer in plain text.
        pass
    return HdfsFailure(status=answer.status, code=code, said=said)


_PREFIX = "/webhdfs/v1"
