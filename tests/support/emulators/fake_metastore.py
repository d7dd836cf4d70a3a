"""A metastore of the tests: answers the calls of the catalog's client from a dictionary."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from delta_maintenance.catalogs.hive.client import Value, answer, call

_REPLY = b"\x80\x01\x00\x02"
Entry = dict[int, Value]
"""The struct `Table`, by field numbers."""


def delta_entry(database: str, name: str, location: str | None = None) -> Entry:
    """An entry as Delta Spark writes it for an external table."""
    path = location or f"s3://lake/{database}/{name}"
    serde: Entry = {3: {"path": path, "serialization.format": "1"}}
    return {
        1: name,
        2: database,
        3: "root",
        7: {2: f"file:/warehouse/{name}-__PLACEHOLDER__", 7: serde},
        9: {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta"},
        12: "EXTERNAL_TABLE",
    }


@dataclass(slots=True, kw_only=True)
class FakeMetastore:
    """What the metastore knows, and how it fails."""

    tables: Mapping[str, Sequence[Entry]]
    """By database."""
    calls: list[str] = field(default_factory=list)
    hang_up: int = 0
    """The number of calls that are not answered."""
    refuse: Callable[[str, Sequence[str]], str | None] = lambda database, names: None
    """The text of the exception for descriptions of tables, if they fail."""
    port: int = 0

    def answer(self, method: str, arguments: Mapping[int, Any]) -> Mapping[int, Value]:
        """The fields of the answer to a call."""
        if method == "get_all_databases":
            return {0: list(self.tables)}
        if method == "set_ugi":
            return {0: [arguments[1]]}
        if method == "get_table_meta":
            return {0: [_meta(entry) for entries in self.tables.values() for entry in entries]}
        database, names = arguments[1][1], arguments[1][2]
        names = [names] if isinstance(names, str) else names
        if (text := self.refuse(database, names)) is not None:
            return {1: {1: text}}
        found = [entry for entry in self.tables.get(database, ()) if entry[1] in names]
        if method == "get_table_req":
            return {0: {1: found[0]}} if found else {2: {1: f"{database}.{names} not found"}}
        return {0: {1: found}}


@contextmanager
def serve_fake(metastore: FakeMetastore, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Answers on a free port until the block ends. Yields the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_sockets.append(connection)
                arguments = (metastore, connection, tls)
                threading.Thread(target=_talk, args=arguments, daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"thrift://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in open_sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def reply(method: str, fields: Mapping[int, Value], number: int) -> bytes:
    """Encodes the answer to a call."""
    # It differs from a call by the kind of message.
    return _REPLY + call(method, fields, number)[4:]


def _talk(metastore: FakeMetastore, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
    with suppress(OSError, EOFError):
        if tls is not None:
            connection = tls.wrap_socket(connection, server_side=True)
        _answer_all(metastore, connection)


def _answer_all(metastore: FakeMetastore, connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as file:

        def exactly(size: int) -> bytes:
            data = file.read(size)
            if len(data) != size:
                raise EOFError
            return data

        while True:
            exactly(4)
            name = exactly(struct.unpack("!i", exactly(4))[0])
            number = exactly(4)
            pieces = [_REPLY, struct.pack("!i", len(name)), name, number]
            method, count = name.decode(), struct.unpack("!i", number)[0]
            arguments = answer(
                lambda size, pieces=pieces: pieces.pop(0) if pieces else exactly(size),  # type: ignore[misc]
                method,
                count,
            )
            metastore.calls.append(method)
            if metastore.hang_up > 0:
                metastore.hang_up -= 1
                return
            connection.sendall(reply(method, metastore.answer(method, arguments), count))


def _meta(entry: Entry) -> Entry:
    return {1: entry[2], 2: entry[1], 3: entry[12]}
