"""A proxy that loses requests and answers between a store and its server, for tests."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from urllib.parse import urlsplit

from tests.support.servers.loopback import Hangup, Reply, Request, serve


class HttpFault(Enum):
    """The failure of a request. The client cannot see whether the request took effect."""

    CUT_BEFORE = "cut before"
    """The connection breaks; the server never sees the request."""
    CUT_AFTER = "cut after"
    """The server carries out the request; the connection breaks before its answer."""
    ERROR_BEFORE = "error before"
    """503, and the server never sees the request."""
    ERROR_AFTER = "error after"
    """The server carries out the request; the client receives 500 instead of its answer."""
    SILENCE_BEFORE = "silence before"
    """No answer until the client times out; the server never sees the request."""
    SILENCE_AFTER = "silence after"
    """The server carries out the request; no answer until the client times out."""
    HALF_AN_ANSWER = "half an answer"
    """The server carries out the request; the connection breaks in the middle of the answer."""
    EMPTY_ANSWER = "empty answer"
    """The server carries out the request; its answer has the right status and an empty body."""


@dataclass(slots=True, kw_only=True)
class FaultProxy:
    """A running proxy. Thread-safe."""

    url: str = ""
    choose: Callable[[Request], HttpFault | None] = lambda request: None
    """Chooses the fault of each request, or None."""
    injected: list[HttpFault] = field(default_factory=list)
    """The faults so far."""
    released: threading.Event = field(default_factory=threading.Event)
    """Ends the silence of requests whose clients have timed out."""


@contextmanager
def serve_faults(
    upstream: str, *, silence: float = 5.0, redirects: Mapping[str, str] | None = None
) -> Iterator[FaultProxy]:
    """Forwards requests to the server at `upstream` until the block ends.

    A silent request is closed after `silence` seconds, which must be longer than the timeout of the
    client. `redirects` maps servers to which answers redirect to their replacements, such as
    another proxy.
    """
    host = urlsplit(upstream).netloc
    proxy = FaultProxy()

    def handle(request: Request) -> Reply:
        fault = proxy.choose(request)
        if fault is None:
            return forward(request)
        proxy.injected.append(fault)
        if fault is HttpFault.HALF_AN_ANSWER:
            whole = forward(request)
            headers = {**whole.headers, "Connection": "close"}
            return replace(whole, headers=headers, body=whole.body[: len(whole.body) // 2])
        if fault is HttpFault.EMPTY_ANSWER:
            return Reply(status=forward(request).status)
        if fault in (HttpFault.CUT_AFTER, HttpFault.ERROR_AFTER, HttpFault.SILENCE_AFTER):
            forward(request)
        if fault in (HttpFault.SILENCE_BEFORE, HttpFault.SILENCE_AFTER):
            proxy.released.wait(silence)
        if fault in (HttpFault.ERROR_BEFORE, HttpFault.ERROR_AFTER):
            return Reply(status=503 if fault is HttpFault.ERROR_BEFORE else 500)
        raise Hangup

    def forward(request: Request) -> Reply:
        connection = http.client.HTTPConnection(host, timeout=30)
        try:
            # Sent unchanged, including the host, from which servers build addresses.
            connection.putrequest(
                request.method, request.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                if name.lower() not in _OWN:
                    connection.putheader(name, value)
            connection.endheaders(request.body)
            answer = connection.getresponse()
            headers = {
                name: value for name, value in answer.getheaders() if name.lower() not in _OWN
            }
            for server, instead in (redirects or {}).items():
                place = headers.get("Location", "")
                if place.startswith(server):
                    headers["Location"] = instead + place[len(server) :]
            return Reply(status=answer.status, headers=headers, body=answer.read())
        finally:
            connection.close()

    with serve(handle) as proxy.url:
        try:
            yield proxy
        finally:
            proxy.released.set()


# Headers that only apply to one connection.
_OWN = frozenset(("connection", "keep-alive", "transfer-encoding", "expect"))
