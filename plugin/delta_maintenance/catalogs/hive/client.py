"""Calls of a Hive Metastore: connections, a choice of servers, retries, and failures."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from delta_maintenance.catalogs.hive.thrift import (
    MalformedAnswer,
    Read,
    ServerException,
    Struct,
    Value,
    answer,
    call,
)
from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently

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
    def unanswered(self) -> bool:
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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._servers = list(servers)
        self._user = user
        self._tls = ssl.create_default_context() if tls else None
        self._pauses = pauses
        self._sleep = sleep
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

        fields = patiently(attempt, self._sleep, self._pauses)
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
            connection = self._connection or self._connected()
            return connection.call(method, arguments)
        except ServerException as error:
            failure = HiveFailure(status=None, code="ServerException", detail=str(error))
        except (OSError, EOFError, MalformedAnswer) as error:
            # What is left of this answer would be taken for the next one.
            self._disconnect()
            failure = _no_answer(error)
        raise failure

    def _connected(self) -> _Connection:
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
