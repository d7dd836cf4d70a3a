"""A proxy that loses calls and answers of Hadoop's RPC protocol, and truncates reads.

Calls of the name node look like HTTP requests to the tests: the target is `/` and the name of the
call; the method is `PUT` for a call that writes, `DELETE` for `delete` and `GET` for the others. A
read from a data node is a `GET` of `/READ_BLOCK`. Writes to a data node pass without faults.

The name node closes a file after a data node has reported the last block, which takes milliseconds,
and hdfs-native asks again after half a second. The proxy asks much sooner, which makes the tests
faster.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message

from tests.support.faults.fault_proxy import FaultProxy, HttpFault
from tests.support.servers.loopback import Request

WRITES = frozenset(("create", "addBlock", "complete", "fsync", "rename2"))
AFTER = (HttpFault.CUT_AFTER, HttpFault.ERROR_AFTER, HttpFault.SILENCE_AFTER)
SILENCE = (HttpFault.SILENCE_BEFORE, HttpFault.SILENCE_AFTER)
ERROR = (HttpFault.ERROR_BEFORE, HttpFault.ERROR_AFTER)
READ_BLOCK = b"\x00\x1cQ"
"""The beginning of a read: the version of the protocol and the operation."""


@contextmanager
def serve_rpc_faults(name_node: str, data_node: str) -> Iterator[FaultProxy]:
    """Forwards calls to a name node and its only data node, each given as `HOST:PORT`."""
    proxy = FaultProxy()
    with (
        _listening(lambda client: _relay_blocks(client, data_node, proxy)) as blocks,
        _listening(
            lambda client: _Calls(client, name_node, data_node, blocks, proxy).relay()
        ) as calls,
    ):
        proxy.url = f"hdfs://127.0.0.1:{calls}"
        try:
            yield proxy
        finally:
            proxy.released.set()


@contextmanager
def _listening(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """Handles each connection in a thread. Yields the port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    opened: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                client = server.accept()[0]
            except OSError:
                return
            opened.append(client)
            threading.Thread(target=_quietly, args=(handle, client), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        _shut(server)
        for client in opened:
            _shut(client)
        thread.join()


def _quietly(handle: Callable[[socket.socket], None], client: socket.socket) -> None:
    # Interrupted connections are the purpose of this proxy.
    with contextlib.suppress(OSError, EOFError):
        handle(client)
    _shut(client)


_FALSE = b"\x02\x08\x00"
"""The end of an answer whose only field is false: its length, the field and the value."""


class _Calls:
    """One connection to the name node."""

    def __init__(
        self, client: socket.socket, name_node: str, data_node: str, blocks: int, proxy: FaultProxy
    ) -> None:
        self._client = client
        self._server = _connect(name_node)
        self._proxy = proxy
        # Both ports are encoded in three bytes, so that no length around them changes.
        self._moved = (_port_field(int(data_node.rpartition(":")[2])), _port_field(blocks))
        assert len(self._moved[0]) == len(self._moved[1]) == 4
        self._faults: dict[int, HttpFault] = {}
        self._closing: dict[int, bytes] = {}
        self._sending = threading.Lock()

    def relay(self) -> None:
        back = threading.Thread(target=self._relay_answers, daemon=True)
        try:
            # The preamble: "hrpc", the version, the class of service, the kind of authentication.
            self._server.sendall(_exactly(self._client, 7))
            back.start()
            while True:
                frame = _frame(self._client)
                call = _Call.of(frame)
                fault = call and self._proxy.choose(call.request)
                if call and fault:
                    self._proxy.injected.append(fault)
                    if fault in AFTER:
                        self._faults[call.number] = fault
                    elif not self._injected(call.number, fault):
                        return
                    else:
                        continue
                if call and call.request.target == "/complete":
                    self._closing[call.number] = frame
                self._send(self._server, frame)
        finally:
            _shut(self._server)

    def _injected(self, number: int, fault: HttpFault) -> bool:
        """Answers a call with a fault. Returns whether the connection is still open."""
        if fault in ERROR:
            self._send(self._client, _error(number))
            return True
        if fault in SILENCE:
            return True
        _shut(self._client)
        return False

    def _relay_answers(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = _frame(self._server)
                number = _call_number(frame)
                if number in self._closing:
                    if frame.endswith(_FALSE):
                        time.sleep(0.003)
                        self._send(self._server, self._closing[number])
                        continue
                    del self._closing[number]
                fault = self._faults.pop(number, None)
                if fault is None:
                    self._send(self._client, frame.replace(*self._moved))
                elif not self._injected(number, fault):
                    break
        _shut(self._client)

    def _send(self, to: socket.socket, frame: bytes) -> None:
        with self._sending:
            to.sendall(frame)


@dataclass(frozen=True, slots=True)
class _Call:
    number: int
    request: Request

    @classmethod
    def of(cls, frame: bytes) -> _Call | None:
        """Parses the call in a frame; None for frames of the connection itself."""
        header, rest = _delimited(frame[4:])
        number = _varint_field(header, 3)
        # Signed numbers are zigzag-encoded; those of the connection are negative.
        if number is None or number & 1:
            return None
        name = _text_field(_delimited(rest)[0], 1)
        method = "PUT" if name in WRITES else "DELETE" if name == "delete" else "GET"
        return cls(
            number >> 1, Request(method=method, target=f"/{name}", headers=Message(), body=b"")
        )


def _relay_blocks(client: socket.socket, data_node: str, proxy: FaultProxy) -> None:
    """One connection to the data node, until it ends."""
    server = _connect(data_node)
    # The number of answer bytes that are still to be forwarded; None without a limit.
    left: list[int | None] = [None]

    def forth() -> None:
        head = b""
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                # The first request may arrive in pieces; later ones begin with a piece.
                begins = len(head) < len(READ_BLOCK)
                head = head + data if begins else data
                if head.startswith(READ_BLOCK):
                    request = Request(
                        method="GET", target="/READ_BLOCK", headers=Message(), body=b""
                    )
                    fault = proxy.choose(request)
                    if fault is HttpFault.HALF_AN_ANSWER:
                        proxy.injected.append(fault)
                        # Less than a packet: the client continues after the last complete one.
                        left[0] = 1_000
                server.sendall(data)
            # After the last packet, a writer closes its half and waits for the acknowledgement.
            server.shutdown(socket.SHUT_WR)
            return
        _shut(server)

    threading.Thread(target=forth, daemon=True).start()
    try:
        while data := server.recv(1 << 16):
            client.sendall(data[: left[0]])
            if left[0] is not None:
                left[0] -= len(data)
                if left[0] <= 0:
                    return
    finally:
        _shut(server)


def _error(number: int) -> bytes:
    """Returns an answer that does not say whether the call took effect."""
    text = b"java.lang.RuntimeException"
    header = b"\x08" + _varint(number) + b"\x10\x01\x18\x09"
    header += b"\x22" + _varint(len(text)) + text + b"\x2a\x08injected"
    body = _varint(len(header)) + header
    return struct.pack(">I", len(body)) + body


def _call_number(frame: bytes) -> int:
    return _varint_field(_delimited(frame[4:])[0], 1) or 0


def _port_field(port: int) -> bytes:
    """Encodes the port of a data node as in an answer of the name node."""
    return b"\x20" + _varint(port)


def _frame(connection: socket.socket) -> bytes:
    """Reads the next message, with the four bytes of its length."""
    size = _exactly(connection, 4)
    return size + _exactly(connection, struct.unpack(">I", size)[0])


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


# The necessary parts of Protocol Buffers.


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, position


def _delimited(data: bytes) -> tuple[bytes, bytes]:
    """Splits off a message that is preceded by its length."""
    size, start = _read_varint(data, 0)
    return data[start : start + size], data[start + size :]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        if key & 7 == 0:
            number, position = _read_varint(message, position)
            yield key >> 3, number
        else:
            size, position = _read_varint(message, position)
            yield key >> 3, message[position : position + size]
            position += size


def _varint_field(message: bytes, wanted: int) -> int | None:
    for number, value in _fields(message):
        if number == wanted and isinstance(value, int):
            return value
    return None


def _text_field(message: bytes, wanted: int) -> str:
    for number, value in _fields(message):
        if number == wanted and isinstance(value, bytes):
            return value.decode()
    return ""
