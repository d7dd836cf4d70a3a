"""The end of a Parquet file, and whether any of its columns is encrypted.

pyarrow ends the process when it is asked for the metadata of an encrypted column, because an
exception of the C++ library leaves a function that may not raise any. A few bytes in a footer are
enough for that, so footers are looked through before pyarrow is asked for anything about a column.

Implements "File Metadata" and "Encrypted Column Metadata" of the Parquet format, and as much of
Thrift's compact protocol as skipping takes.
"""

from __future__ import annotations

import io
from typing import BinaryIO

import pyarrow as pa

from delta_maintenance.table.compact_protocol import MalformedThriftError, varint

TAIL_BYTES = 64 << 10
"""What is read of a file at first, as pyarrow does: the footers of most files are shorter."""
_END = 8
"""Bytes after a footer: its length and a magic."""
_STOP, _LIST, _SET, _MAP, _STRUCT = 0, 9, 10, 11, 12
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8, 13: 16}
"""The bytes of values of a fixed size, by type; booleans of a struct are part of their type."""
_ROW_GROUPS, _COLUMNS, _CRYPTO_METADATA = 4, 1, 8
_WAY = (_ROW_GROUPS, _COLUMNS, _CRYPTO_METADATA)
"""The field to follow in the metadata of the file, of a row group and of a column."""
_MOST_DEPTH = 16


def footer_size(tail: bytes) -> int:
    """The bytes of the footer and of what follows it, by the last bytes of a file."""
    return int.from_bytes(tail[-_END:-4], "little") + _END


def require_plain_columns(tail: bytes) -> None:
    """Raises `pa.ArrowInvalid` if a column is encrypted, or the footer is none.

    `tail` is the end of the file and contains the whole footer.
    """
    size = footer_size(tail)
    if not _END < size <= len(tail):
        raise pa.ArrowInvalid("the footer is longer than the file")
    try:
        found, _ = _walk(tail[-size:], 0, 0)
    except IndexError:
        raise pa.ArrowInvalid("the footer is cut off") from None
    except MalformedThriftError as error:
        raise pa.ArrowInvalid(f"the footer is no footer: {error}") from None
    if found:
        raise pa.ArrowInvalid("columns of the file are encrypted")


def require_plain_file(source: BinaryIO) -> None:
    """`require_plain_columns` for a file, of which the end is read."""
    tail, _ = _read_tail(source)
    source.seek(0)
    require_plain_columns(tail)


def read_footer(source: BinaryIO) -> tuple[bytes, int]:
    """The bytes of the footer, and its position in the file. `pa.ArrowInvalid` for none."""
    tail, end = _read_tail(source)
    size = footer_size(tail)
    if not _END < size <= len(tail):
        raise pa.ArrowInvalid("the footer is longer than the file")
    return tail[-size:-_END], end - size


def _read_tail(source: BinaryIO) -> tuple[bytes, int]:
    """The end of a file with the whole footer, if there is one, and the size of the file."""
    end = source.seek(0, io.SEEK_END)
    size = min(end, TAIL_BYTES)
    for _ in range(2):
        source.seek(end - size)
        tail = source.read(size)
        if footer_size(tail) <= size:
            break
        size = min(end, footer_size(tail))
    return tail, end


def _walk(data: bytes, at: int, level: int) -> tuple[bool, int]:
    """Whether the struct leads to crypto metadata, and the position after it."""
    field = 0
    while (head := data[at]) != _STOP:
        at += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            number, at = varint(data, at)
            field = (number >> 1) ^ -(number & 1)
        if field == _WAY[level]:
            if level == len(_WAY) - 1:
                return True, at
            if kind == _LIST:
                count, element, at = _list_head(data, at)
                if element == _STRUCT:
                    for _ in range(count):
                        found, at = _walk(data, at, level + 1)
                        if found:
                            return True, at
                    continue
                at = _skip_all(data, at, count, element, _MOST_DEPTH)
                continue
        at = _skip(data, at, kind, _MOST_DEPTH)
    return False, at + 1


def _skip(data: bytes, at: int, kind: int, depth: int) -> int:
    """The position after a value."""
    if 4 <= kind <= 6:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == 8:
        length, at = varint(data, at)
        return at + length
    if kind in _FIXED:
        return at + _FIXED[kind]
    if not depth:
        raise pa.ArrowInvalid("the footer is nested too deeply")
    if kind == _STRUCT:
        while (head := data[at]) != _STOP:
            at += 1
            if not head >> 4:
                at = _skip(data, at, 4, depth)
            at = _skip(data, at, head & 15, depth - 1)
        return at + 1
    if kind in (_LIST, _SET):
        count, element, at = _list_head(data, at)
        return _skip_all(data, at, count, element, depth - 1)
    if kind == _MAP:
        count, at = varint(data, at)
        if not count:
            return at
        kinds = data[at]
        at += 1
        for _ in range(count):
            at = _skip_all(data, at, 1, kinds >> 4, depth - 1)
            at = _skip_all(data, at, 1, kinds & 15, depth - 1)
        return at
    raise pa.ArrowInvalid("the footer has a value of an unknown type")


def _skip_all(data: bytes, at: int, count: int, element: int, depth: int) -> int:
    """The position after the elements of a list. Booleans take a byte each there."""
    kind = 3 if element in (1, 2) else element
    if kind in _FIXED:
        return at + count * _FIXED[kind]
    for _ in range(count):
        at = _skip(data, at, kind, depth)
    return at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """The number and the type of the elements, and the position of the first one."""
    head = data[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = varint(data, at)
    return count, head & 15, at
