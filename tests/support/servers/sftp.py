"""An SFTP server on the loopback interface, over one folder of this machine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh

USER, PASSWORD = "alice", "hunter2"


class _Login(asyncssh.SSHServer):
    def __init__(self, opened: list[asyncssh.SSHServerConnection]) -> None:
        self._opened = opened

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._opened.append(conn)

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == (USER, PASSWORD)


@contextmanager
def serve_sftp(folder: Path) -> Iterator[int]:
    """Serves the folder as the root of all paths until the block ends. Yields the port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened: list[asyncssh.SSHServerConnection] = []

    async def start() -> asyncssh.SSHAcceptor:
        return await asyncssh.create_server(
            lambda: _Login(opened),
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=bytes(folder)),
        )

    async def stop() -> None:
        server.close()
        for connection in opened:
            connection.abort()
            await connection.wait_closed()
        # Lets the transports close in the next iterations of the loop.
        await asyncio.sleep(0.05)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield server.get_port()
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
