"""A client for Hive Metastore: connections, and Thrift's binary protocol."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently

Value: TypeAlias = "bool | int | str | Sequence[Value] | Mapping[int, Value] | Mapping[str, str]"
Struct: TypeAlias = dict[int, Any]
"""A decoded struct, by field numbers. Fields of unknown numbers are kept."""
Read = Callable[[int], bytes]
"""Returns exactly that many bytes."""

_VERSION = 0x80010000
_CALL, _REPLY, _EXCEPTION = 1, 2, 3
_STOP, _BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64 = 0, 2, 3, 4, 6, 8, 10
_STRING, _STRUCT, _MAP, _SET, _LIST = 11, 12, 13, 14, 15
_MOST_BYTES = 1 << 27
_MOST_DEPTH = 32
_head = struct.Struct("!bh")
_list_head = struct.Struct("!bi")
_map_head = struct.Struct("!bbi")
_int = struct.Struct("!i")
_NUMBERS = {
    _BYTE: struct.Struct("!b"),
    _DOUBLE: struct.Struct("!d"),
    _I16: struct.Struct("!h"),
    _I32: _int,
    _I64: struct.Struct("!q"),
}


class MalformedAnswer(ValueError):
    """The bytes are no answer of the binary protocol, or exceed its bounds."""


class ServerException(Exception):
    """The server refuses a call itself, such as that of an unknown method."""


def call(method: str, arguments: Mapping[int, Value], number: int) -> bytes:
    """Encodes a call. Integers become 32-bit integers; empty lists become lists of texts."""
    name = method.encode()
    head = struct.pack("!Ii", _VERSION | _CALL, len(name)) + name + _int.pack(number)
    return head + _encode(arguments)[1]


def answer(read: Read, method: str, number: int) -> Struct:
    """Reads the answer to a call. `ServerException` if it is an exception of the server."""
    read = _bound(read)
    version = _int.unpack(read(4))[0] & 0xFFFFFFFF
    if version & 0xFFFF0000 != _VERSION:
        raise MalformedAnswer("no answer of a Thrift server with the binary protocol")
    name, answered = _text(read), _int.unpack(read(4))[0]
    fields: Struct = _decode(read, _STRUCT, 0)
    if version & 0xFF == _EXCEPTION:
        raise ServerException(str(fields.get(1, "")))
    if (version & 0xFF, name, answered) != (_REPLY, method, number):
        raise MalformedAnswer(f"an answer to another call than {method}")
    return fields


def _encode(value: Value) -> tuple[int, bytes]:
    """Returns the type and the bytes of a value."""
    if isinstance(value, bool):
        return _BOOL, bytes([value])
    if isinstance(value, int):
        return _I32, _int.pack(value)
    if isinstance(value, str):
        data = value.encode(errors="surrogateescape")
        return _STRING, _int.pack(len(data)) + data
    if isinstance(value, Sequence):
        items = [_encode(item) for item in value]
        kind = items[0][0] if items else _STRING
        return _LIST, _list_head.pack(kind, len(items)) + b"".join(data for _, data in items)
    if value and all(isinstance(name, str) for name in value):
        pairs = b"".join(_encode(item)[1] for pair in value.items() for item in pair)
        return _MAP, _map_head.pack(_STRING, _STRING, len(value)) + pairs
    encoded_fields = []
    for field, item in value.items():
        kind, data = _encode(item)
        encoded_fields += [_head.pack(kind, field), data]
    return _STRUCT, b"".join(encoded_fields) + bytes([_STOP])


def _decode(read: Read, kind: int, depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise MalformedAnswer("values are nested too deeply")
    if kind == _STRING:
        return _text(read)
    if kind in _NUMBERS:
        number = _NUMBERS[kind]
        return number.unpack(read(number.size))[0]
    if kind == _BOOL:
        return read(1) != b"\0"
    if kind == _STRUCT:
        fields: Struct = {}
        while (item := read(1)[0]) != _STOP:
            field = _NUMBERS[_I16].unpack(read(2))[0]
            fields[field] = _decode(read, item, depth + 1)
        return fields
    if kind in (_LIST, _SET):
        item, size = _list_head.unpack(read(5))
        return [_decode(read, item, depth + 1) for _ in range(_sound(size))]
    if kind == _MAP:
        key, item, size = _map_head.unpack(read(6))
        if key in (_STRUCT, _MAP):
            raise MalformedAnswer(f"a map with keys of the type {key}")
        pairs = {}
        for _ in range(_sound(size)):
            name = _decode(read, key, depth + 1)
            value = _decode(read, item, depth + 1)
            pairs[repr(name) if key in (_SET, _LIST) else name] = value
        return pairs
    raise MalformedAnswer(f"a value of the unknown type {kind}")


def _bound(read: Read) -> Read:
    """Reads no more than one answer may have."""
    remaining = _MOST_BYTES

    def read_bounded(size: int) -> bytes:
        nonlocal remaining
        remaining -= size
        if remaining < 0:
            raise MalformedAnswer(f"an answer of more than {_MOST_BYTES:,} bytes")
        return read(size)

    return read_bounded


def _text(read: Read) -> str:
    # The names and addresses of tables are bytes to the metastore.
    return read(_sound(_int.unpack(read(4))[0])).decode(errors="surrogateescape")


def _sound(size: int) -> int:
    if not 0 <= size <= _MOST_BYTES:
        raise MalformedAnswer(f"a value of {size} bytes")
    return size


CONNECT_SECONDS = 5.0
"""The time limit to connect."""
ANSWER_SECONDS = 60.0
"""The time limit between two received bytes."""


class HiveFailure(RequestFailure):
    """A failed call. `code` is the name of the metastore's exception, or of the client's error."""

    service = "Hive Metastore"
    access_codes = frozenset(("MalformedAnswer", "SSLCertVerificationError", "ServerException"))

    @property
    def missing(self) -> bool:
        return self.code in ("NoSuchObjectException", "UnknownDBException")

    @property
    def access(self) -> bool:
        # The metastore has one exception for everything, and names a missing right in its text.
        return self.code in self.access_codes or _DENIED.search(str(self)) is not None

    @property
    def is_unsure(self) -> bool:
        return not self.access and self.code not in _EXCEPTIONS

    @property
    def remedy(self) -> str | None:
        return _REMEDIES.get(self.code)


_DENIED = re.compile(r"permission|access ?control|authoriz|privilege", re.IGNORECASE)
_EXCEPTIONS = (
    "InvalidOperationException",
    "MetaException",
    "NoSuchObjectException",
    "UnknownDBException",
)
"""The metastore's own exceptions, which a repeated call would meet again."""
_REMEDIES = {
    "EOFError": "check that the address is that of a metastore, and whether it requires TLS "
    "(option tls) or Kerberos, which is not supported",
    "MalformedAnswer": "check that the address is that of a metastore",
    "ServerException": "use Hive Metastore 2.3 or newer",
    "SSLCertVerificationError": "name the certificates of its authority in SSL_CERT_FILE",
}
"""By the code."""


@dataclass(frozen=True, slots=True)
class Server:
    """One metastore."""

    host: str
    port: int


class HiveClient:
    """Calls the first of several metastores that answers. Thread-safe: one call at a time.

    `user` is the name that a metastore without authentication takes for the caller; None sends
    none. `pauses` are the seconds to wait before each further attempt.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        user: str | None = None,
        tls: bool = False,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._servers = list(servers)
        self._user = user
        self._tls = ssl.create_default_context() if tls else None
        self._pauses = pauses
        self._turn = threading.Lock()
        self._connection: _Connection | None = None
        self.requests = 0
        """The number of calls so far, repeated ones included."""

    def call(
        self, method: str, arguments: Mapping[int, Value], exceptions: Sequence[str]
    ) -> Struct:
        """Sends a call that changes nothing, with retries, and returns the fields of its answer.

        `exceptions` are the names of the method's exceptions, by their field numbers from 1 on.
        `HiveFailure` for any of them, and without an answer.
        """

        def attempt() -> Struct:
            with self._turn:
                return self._sent(method, arguments)

        fields = patiently(attempt, time.sleep, self._pauses)
        for number, name in enumerate(exceptions, 1):
            if number in fields:
                raise HiveFailure(status=None, code=name, detail=str(fields[number].get(1, "")))
        return fields

    def close(self) -> None:
        """Closes the connection."""
        with self._turn:
            self._disconnect()

    def _sent(self, method: str, arguments: Mapping[int, Value]) -> Struct:
        self.requests += 1
        try:
            connection = self._connection or self._connect()
            return connection.call(method, arguments)
        except ServerException as error:
            failure = HiveFailure(status=None, code="ServerException", detail=str(error))
        except (OSError, EOFError, MalformedAnswer) as error:
            # What is left of this answer would be taken for the next one.
            self._disconnect()
            failure = _no_answer(error)
        raise failure

    def _connect(self) -> _Connection:
        """Connects to the first server that accepts; a server that does not goes to the end."""
        error: Exception | None = None
        for _ in range(len(self._servers)):
            connection = None
            try:
                connection = _Connection(self._servers[0], self._tls)
                if self._user is not None:
                    # Thrift's own exception: a server that does not know the method needs no user.
                    with suppress(ServerException):
                        connection.call("set_ugi", {1: self._user, 2: []})
            except (OSError, EOFError, MalformedAnswer) as refused:
                if connection is not None:
                    connection.close()
                error = error or refused
                self._servers.append(self._servers.pop(0))
            else:
                self._connection = connection
                return connection
        assert error is not None
        raise error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Connection:
    """One connection, with answers in the order of the calls."""

    def __init__(self, server: Server, tls: ssl.SSLContext | None) -> None:
        self._socket = socket.create_connection((server.host, server.port), CONNECT_SECONDS)
        self._calls = 0
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=server.host)
            self._file: BinaryIO = self._socket.makefile("rb")
        except BaseException:
            self._socket.close()
            raise

    def call(self, method: str, arguments: Mapping[int, Value]) -> Struct:
        """Sends one call and reads its answer."""
        self._calls += 1
        self._socket.sendall(call(method, arguments, self._calls))
        return answer(self._exactly(), method, self._calls)

    def close(self) -> None:
        """Closes the connection."""
        self._file.close()
        self._socket.close()

    def _exactly(self) -> Read:
        read = self._file.read

        def exactly(size: int) -> bytes:
            data = read(size)
            if len(data) != size:
                raise EOFError("the metastore closed the connection")
            return data

        return exactly


def _no_answer(error: Exception) -> HiveFailure:
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return HiveFailure(status=None, code=type(error).__name__, detail=detail)
