"""Thrift's binary protocol: calls and answers as plain values, without generated classes.

A struct is a dictionary from field numbers to values, a map is a dictionary with texts as keys.
Implements "Message" and "Struct" of Thrift's binary protocol encoding, in its strict form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

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
    return head + _encoded(arguments)[1]


def answer(read: Read, method: str, number: int) -> Struct:
    """Reads the answer to a call. `ServerException` if it is an exception of the server."""
    read = _bounded(read)
    version = _int.unpack(read(4))[0] & 0xFFFFFFFF
    if version & 0xFFFF0000 != _VERSION:
        raise MalformedAnswer("no answer of a Thrift server with the binary protocol")
    name, answered = _text(read), _int.unpack(read(4))[0]
    fields: Struct = _decoded(read, _STRUCT, 0)
    if version & 0xFF == _EXCEPTION:
        raise ServerException(str(fields.get(1, "")))
    if (version & 0xFF, name, answered) != (_REPLY, method, number):
        raise MalformedAnswer(f"an answer to another call than {method}")
    return fields


def _encoded(value: Value) -> tuple[int, bytes]:
    """Returns the type and the bytes of a value."""
    if isinstance(value, bool):
        return _BOOL, bytes([value])
    if isinstance(value, int):
        return _I32, _int.pack(value)
    if isinstance(value, str):
        data = value.encode(errors="surrogateescape")
        return _STRING, _int.pack(len(data)) + data
    if isinstance(value, Sequence):
        items = [_encoded(item) for item in value]
        kind = items[0][0] if items else _STRING
        return _LIST, _list_head.pack(kind, len(items)) + b"".join(data for _, data in items)
    if value and all(isinstance(name, str) for name in value):
        pairs = b"".join(_encoded(item)[1] for pair in value.items() for item in pair)
        return _MAP, _map_head.pack(_STRING, _STRING, len(value)) + pairs
    parts = []
    for field, item in value.items():
        kind, data = _encoded(item)
        parts += [_head.pack(kind, field), data]
    return _STRUCT, b"".join(parts) + bytes([_STOP])


def _decoded(read: Read, kind: int, depth: int) -> Any:
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
            fields[field] = _decoded(read, item, depth + 1)
        return fields
    if kind in (_LIST, _SET):
        item, size = _list_head.unpack(read(5))
        return [_decoded(read, item, depth + 1) for _ in range(_sound(size))]
    if kind == _MAP:
        key, item, size = _map_head.unpack(read(6))
        if key in (_STRUCT, _MAP):
            raise MalformedAnswer(f"a map with keys of the type {key}")
        pairs = {}
        for _ in range(_sound(size)):
            name = _decoded(read, key, depth + 1)
            value = _decoded(read, item, depth + 1)
            pairs[repr(name) if key in (_SET, _LIST) else name] = value
        return pairs
    raise MalformedAnswer(f"a value of the unknown type {kind}")


def _bounded(read: Read) -> Read:
    """Reads no more than one answer may have."""
    left = _MOST_BYTES

    def bounded(size: int) -> bytes:
        nonlocal left
        left -= size
        if left < 0:
            raise MalformedAnswer(f"an answer of more than {_MOST_BYTES:,} bytes")
        return read(size)

    return bounded


def _text(read: Read) -> str:
    # The names and addresses of tables are bytes to the metastore.
    return read(_sound(_int.unpack(read(4))[0])).decode(errors="surrogateescape")


def _sound(size: int) -> int:
    if not 0 <= size <= _MOST_BYTES:
        raise MalformedAnswer(f"a value of {size} bytes")
    return size
