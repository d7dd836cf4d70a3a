"""Faults of an S3 server and of the network, injected in front of the emulator."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator

from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse

Fault = Callable[[Application, Environ, StartResponse], Iterable[bytes]]
MIB = 1 << 20
PATH = "_delta_log/00000000000000000007.json"


class Faults:
    """Answers some requests of a server with faults, in order, and counts them."""

    def __init__(self, server: S3Server) -> None:
        self.injected = 0
        self._server = server
        self._queues: dict[str, Iterator[Fault]] = {}
        server.intercept = self._wrap

    def on(self, request: str, *faults: Fault, forever: bool = False) -> None:
        """`request` is a method and a text of the URI; afterwards, or `forever`, faults repeat."""

        def queue() -> Iterator[Fault]:
            yield from faults
            while forever:
                yield faults[-1]

        self._queues[request] = queue()

    def _wrap(self, application: Application) -> Application:
        def handler(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            for request, queue in self._queues.items():
                method, _, text = request.partition(" ")
                # Probes have faults only where a test names them.
                named = ".probe" in text or ".probe" not in environ["REQUEST_URI"]
                if named and method == environ["REQUEST_METHOD"] and text in environ["REQUEST_URI"]:
                    fault = next(queue, None)
                    if fault is not None:
                        self.injected += 1
                        return fault(application, environ, start)
            return application(environ, start)

        return handler


def answer(status: int, code: str, *, applied: bool = False) -> Fault:
    """An error answer, with or without the request having taken effect."""

    def fault(application: Application, environ: Environ, start: StartResponse) -> list[bytes]:
        if applied:
            list(application(environ, lambda *_: None))
        body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        if environ["REQUEST_METHOD"] == "HEAD":
            body = b""
        start(f"{status} Injected", [("Content-Length", str(len(body)))])
        return [body]

    return fault


def dropped(*, applied: bool = False) -> Fault:
    """The connection breaks before any answer."""

    def fault(application: Application, environ: Environ, start: StartResponse) -> list[bytes]:
        if applied:
            list(application(environ, lambda *_: None))
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        start("200 OK", [])
        return []

    return fault


def refuted_without_condition(
    application: Application, environ: Environ, start: StartResponse
) -> Iterable[bytes]:
    """Returns the 412 of servers that do not name the failed condition; other answers pass."""
    seen: list[tuple[str, list[tuple[str, str]]]] = []
    body = application(environ, lambda status, headers, *_: seen.append((status, headers)))
    status, headers = seen[0]
    if status.startswith("412"):
        return answer(412, "PreconditionFailed")(application, environ, start)
    start(status, headers)
    return body


def passed(application: Application, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    return application(environ, start)


def without(*headers: str) -> Callable[[Application], Application]:
    """A server that ignores some request headers."""

    def wrap(application: Application) -> Application:
        def handler(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            for header in headers:
                for key in [key for key in environ if key.startswith(header)]:
                    del environ[key]
            return application(environ, start)

        return handler

    return wrap


APPLIED_THEN_500 = answer(500, "InternalError", applied=True)


APPLIED_THEN_503 = answer(503, "SlowDown", applied=True)


APPLIED_THEN_DROPPED = dropped(applied=True)


LOST_500 = answer(500, "InternalError")


LOST_503 = answer(503, "SlowDown")


LOST_DROPPED = dropped()
CONFLICT = answer(409, "ConditionalRequestConflict")
DENIED = answer(403, "AccessDenied")
