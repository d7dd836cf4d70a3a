"""Reads and writes Thrift's compact protocol, the encoding of Parquet metadata.

A struct is read as a `Struct`, which keeps the type of every field, known or not, so that it can be
written back with the same bytes. Implements "Struct encoding" and "List and Set" of the
specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE = 0, 1, 2, 3, 4, 5, 6, 7
BINARY, LIST, SET, MAP, STRUCT, UUID = 8, 9, 10, 11, 12, 13
FIXED = {DOUBLE: 8, UUID: 16}
"""The sizes in bytes of values that are kept undecoded, by type."""
_SIZES = {TRUE: 0, FALSE: 0, BYTE: 1, **FIXED}
"""The sizes of values of fixed size, by type; booleans of a struct are part of their type."""
_MOST_DEPTH = 16
_MOST_BITS = 63


class MalformedThriftError(ValueError):
    """The bytes are not a value of the compact protocol."""


@dataclass(slots=True)
class ListValue:
    """A list or a set."""

    element: int
    """The type of the elements."""
    values: list[Value]


@dataclass(slots=True)
class Struct:
    """The fields of a struct by their numbers, each with its type."""

    fields: dict[int, tuple[int, Value]] = field(default_factory=dict)

    def get(self, number: int) -> Value:
        """Returns the value of a field, None if it is absent."""
        field = self.fields.get(number)
        return None if field is None else field[1]

    def number(self, number: int) -> int | None:
        """Returns the value of an integer field, None if it is absent."""
        value = self.get(number)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise MalformedThriftError(f"the field {number} is not an integer")
        return value

    def structs(self, number: int) -> list[Struct]:
        """Returns the structs of a list field, none if it is absent."""
        value = self.get(number)
        if value is None:
            return []
        if not isinstance(value, ListValue) or value.element != STRUCT:
            raise MalformedThriftError(f"the field {number} is not a list of structs")
        return [item for item in value.values if isinstance(item, Struct)]

    def put(self, number: int, kind: int, value: Value) -> None:
        """Sets a field."""
        self.fields[number] = kind, value

    def drop(self, *numbers: int) -> None:
        """Removes fields if they are present."""
        for number in numbers:
            self.fields.pop(number, None)

    def copy(self) -> Struct:
        """Returns a copy."""
        return Struct(dict(self.fields))


Value: TypeAlias = "bool | int | bytes | ListValue | Struct | None"


class ByteSequence(Protocol):
    """Bytes by their positions, in memory or not."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> int: ...


def varint(data: ByteSequence, at: int) -> tuple[int, int]:
    """Reads an unsigned number. Returns it and the position after it; `IndexError` if the bytes end
    within it.
    """
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value, shift = value & 127, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > _MOST_BITS:
            raise MalformedThriftError("a number does not end")


def zigzag(data: ByteSequence, at: int) -> tuple[int, int]:
    """Reads a signed number. Returns it and the position after it."""
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def read_struct(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """Reads a struct. Returns it and the position after it; `MalformedThriftError` for invalid
    bytes.
    """
    try:
        return _struct(data, at, _MOST_DEPTH)
    except IndexError:
        raise MalformedThriftError("a struct is truncated") from None


def field_head(data: ByteSequence, at: int, number: int) -> tuple[int, int, int]:
    """Returns the number and the type of the field after the field `number`, and the position of
    its value. A struct begins after the field 0 and ends with `STOP`.
    """
    head = data[at]
    if head >> 4:
        return number + (head >> 4), head & 15, at + 1
    number, at = zigzag(data, at + 1)
    return number, head & 15, at


def skip(data: ByteSequence, at: int, kind: int, depth: int = _MOST_DEPTH) -> int:
    """Returns the position after the value of a field. `IndexError` if the bytes end within it,
    `MalformedThriftError` for other invalid bytes.
    """
    if I16 <= kind <= I64:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == BINARY:
        length, at = varint(data, at)
        return at + length
    if kind in _SIZES:
        return at + _SIZES[kind]
    if not depth:
        raise MalformedThriftError("values are nested too deeply")
    if kind == STRUCT:
        while (head := data[at]) != STOP:
            at += 1
            if head < 16:
                _, at = varint(data, at)
            if I16 <= (kind := head & 15) <= I64:  # the usual types, without a call
                while data[at] > 127:
                    at += 1
                at += 1
            elif kind == BINARY and data[at] < 128:
                at += data[at] + 1
            elif not TRUE <= kind <= FALSE:
                at = skip(data, at, kind, depth - 1)
        return at + 1
    if kind in (LIST, SET):
        return skip_elements(data, *list_head(data, at), depth=depth - 1)
    if kind == MAP:
        count, at = varint(data, at)
        if not count:
            return at
        kinds = data[at]
        at += 1
        for _ in range(count):
            at = skip_elements(data, 1, kinds >> 4, at, depth=depth - 1)
            at = skip_elements(data, 1, kinds & 15, at, depth=depth - 1)
            if at > len(data):
                # Values of a fixed size are not read, so a false count would never end.
                raise IndexError
        return at
    raise MalformedThriftError(f"a value has the type {kind}")


def skip_elements(
    data: ByteSequence, count: int, element: int, at: int, *, depth: int = _MOST_DEPTH
) -> int:
    """Returns the position after the elements of a list, in which each boolean is one byte.

    Raises the errors of `skip`.
    """
    kind = BYTE if element in (TRUE, FALSE) else element
    if kind in _SIZES:
        return at + count * _SIZES[kind]
    if I16 <= kind <= I64:  # as in `skip`, without a call for each
        for _ in range(count):
            while data[at] > 127:
                at += 1
            at += 1
        return at
    for _ in range(count):
        at = skip(data, at, kind, depth)
    return at


def struct_bytes(value: Struct) -> bytes:
    """Serialises a struct."""
    out = bytearray()
    _write_struct(out, value)
    return bytes(out)


def with_edited_structs(data: bytes, number: int, edit: Callable[[int, Struct], Struct]) -> bytes:
    """Returns the bytes of a struct in which each struct of a list field has been edited.

    `edit` takes the place of a struct in the list, and the struct. One struct is held at a time.
    `MalformedThriftError` for invalid bytes, or if there is no such field.
    """
    field_number = at = 0
    try:
        while data[at] != STOP:
            field_number, kind, at = field_head(data, at, field_number)
            if field_number != number:
                at = skip(data, at, kind)
                continue
            count, element, at = list_head(data, at)
            if (kind, element) != (LIST, STRUCT):
                break
            out = bytearray(data[:at])
            for index in range(count):
                value, at = _struct(data, at, _MOST_DEPTH)
                _write_struct(out, edit(index, value))
            out += data[at:]
            return bytes(out)
    except IndexError:
        raise MalformedThriftError("a struct is truncated") from None
    raise MalformedThriftError(f"the field {number} is not a list of structs")


def list_head(data: ByteSequence, at: int) -> tuple[int, int, int]:
    """Returns the number and the type of the elements, and the position of the first one."""
    head = data[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = varint(data, at)
    return count, head & 15, at


def _struct(data: bytes | memoryview, at: int, depth: int) -> tuple[Struct, int]:
    if not depth:
        raise MalformedThriftError("structs are nested too deeply")
    struct = Struct()
    number = 0
    while data[at] != STOP:
        number, kind, at = field_head(data, at, number)
        if kind in (TRUE, FALSE):
            struct.fields[number] = kind, kind == TRUE
            continue
        value, at = _value(data, at, kind, depth)
        struct.fields[number] = kind, value
    return struct, at + 1


def _value(data: bytes | memoryview, at: int, kind: int, depth: int) -> tuple[Value, int]:
    if kind in (I16, I32, I64):
        return zigzag(data, at)
    if kind == BINARY:
        size, at = varint(data, at)
        return _bytes(data, at, size)
    if kind == STRUCT:
        return _struct(data, at, depth - 1)
    if kind in (LIST, SET):
        return _list(data, at, depth - 1)
    if kind in (TRUE, FALSE, BYTE):
        # In lists, each boolean is one byte.
        return data[at], at + 1
    if kind in FIXED:
        return _bytes(data, at, FIXED[kind])
    raise MalformedThriftError(f"a value has the type {kind}")


def _bytes(data: bytes | memoryview, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise MalformedThriftError("a value is truncated")
    return bytes(data[at : at + size]), at + size


def _list(data: bytes | memoryview, at: int, depth: int) -> tuple[ListValue, int]:
    count, element, at = list_head(data, at)
    if count > len(data) - at:
        raise MalformedThriftError("a list is truncated")
    items = ListValue(element, [])
    for _ in range(count):
        value, at = _value(data, at, element, depth)
        items.values.append(value)
    return items, at


def _write_struct(out: bytearray, value: Struct) -> None:
    number_before = 0
    for number in sorted(value.fields):
        kind, content = value.fields[number]
        if kind in (TRUE, FALSE):
            kind = TRUE if content else FALSE
        if 0 < number - number_before <= 15:
            out.append((number - number_before) << 4 | kind)
        else:
            out.append(kind)
            _write_number(out, number)
        number_before = number
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, content)
    out.append(STOP)


def _write_value(out: bytearray, kind: int, value: Value) -> None:
    if isinstance(value, Struct):
        _write_struct(out, value)
    elif isinstance(value, ListValue):
        count = len(value.values)
        if count < 15:
            out.append(count << 4 | value.element)
        else:
            out.append(15 << 4 | value.element)
            _write_varint(out, count)
        for item in value.values:
            _write_value(out, value.element, item)
    elif isinstance(value, bytes):
        if kind == BINARY:
            _write_varint(out, len(value))
        out += value
    elif kind in (TRUE, FALSE, BYTE):
        out.append(int(value or 0))
    else:
        _write_number(out, int(value or 0))


def _write_number(out: bytearray, value: int) -> None:
    _write_varint(out, (value << 1) ^ (value >> 63))


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
