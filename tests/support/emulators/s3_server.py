"""An S3 server on the loopback interface, in threads of this process, for tests.

It needs the package `moto[server]`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]


@dataclass(slots=True, kw_only=True)
class S3Server:
    """A running server. Every test uses its own bucket, because the server keeps all buckets."""

    url: str
    requests: list[str] = field(default_factory=list)
    """One line per request so far, `METHOD /BUCKET/KEY?QUERY`; clear it to start counting again."""
    intercept: Callable[[Application], Application] | None = None
    """Wraps the application for as long as it is set, to inject faults."""

    @property
    def storage_options(self) -> dict[str, str]:
        """The options with which `open_store` reaches the server."""
        return {
            "AWS_ACCESS_KEY_ID": "testing-key",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name: str) -> None:
        """Creates an empty bucket, and replaces one of an earlier test."""
        from moto.s3.models import s3_backends

        _backend().buckets.pop(name, None)
        s3_backends.bucket_accounts.pop(name, None)
        _backend().create_bucket(name, "us-east-1")

    def unfinished_uploads(self, bucket: str) -> list[str]:
        """Returns the keys of uploads in parts that are neither completed nor aborted."""
        return [upload.key_name for upload in _backend().list_multipart_uploads(bucket).values()]

    def fill(self, bucket: str, keys: Iterable[str], data: bytes = b"") -> None:
        """Stores many objects at once, without a request for each."""
        for key in keys:
            _backend().put_object(bucket, key, data)


@contextmanager
def serve_s3() -> Iterator[S3Server]:
    """Serves S3 on a free port until the block ends.

    Requests are serialised: the emulator checks a condition and stores the object in two steps, and
    only a lock around both makes the pair atomic.
    """
    # Imported here, because only tests have these packages, and they take seconds to load.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class QuietHandler(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            return

    emulator = DomainDispatcherApplication(create_backend_app)
    turn = threading.Lock()

    def locked(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        with turn:
            return list(emulator(environ, start_response))

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        server.requests.append(f"{environ['REQUEST_METHOD']} {environ['REQUEST_URI']}")
        handler = server.intercept(locked) if server.intercept else locked
        return handler(environ, start_response)

    listener = make_server("127.0.0.1", 0, application, threaded=True, request_handler=QuietHandler)
    server = S3Server(url=f"http://127.0.0.1:{listener.server_port}")
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def _backend() -> Any:
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
