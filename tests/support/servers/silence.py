"""A server that accepts connections and never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def serve_silence() -> Iterator[tuple[str, list[socket.socket]]]:
    """Yields the address of a server that never answers, and its connections so far."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connections.append(server.accept()[0])

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", connections
        finally:
            # Ends the call of the thread, which closing does not.
            server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in connections:
                connection.close()
