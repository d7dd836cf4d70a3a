"""HTTP servers on the loopback interface, in threads of this process, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One received request."""

    method: str
    target: str
    """Path and query, as sent."""
    headers: Message[str, str]
    """Headers; names are case-insensitive."""
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer; `Content-Length` is added if it is missing."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Hangup(Exception):
    """Raised by a handler to close the connection without an answer."""


@contextmanager
def serve(handle: Callable[[Request], Reply]) -> Iterator[str]:
    """Answers requests on a free port until the block ends, in parallel. Yields the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Send small answers immediately.
        disable_nagle_algorithm = True

        def answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            request = Request(
                method=self.command,
                target=self.path,
                headers=self.headers,
                body=self.rfile.read(size),
            )
            try:
                reply = handle(request)
            except Hangup:
                self.close_connection = True
                return
            self.send_response_only(reply.status)
            if not any(name.lower() == "content-length" for name in reply.headers):
                self.send_header("Content-Length", str(len(reply.body)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            # Tests include clients that time out.
            return

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
